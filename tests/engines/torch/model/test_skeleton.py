"""A model taken apart, on one of three layers whose sums can be done by hand."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from scoremode.engines.torch.model.layer_recorder import NotSeparable
from scoremode.engines.torch.model.skeleton import Skeleton, kept_dtype
from scoremode.errors import UnsupportedModel

IDS = torch.tensor([[1, 2, 3]])


class Layer(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, hidden_states: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return hidden_states * self.factor + shift


class Table(nn.Module):
    """A position table that grows with what it has seen."""

    max_seq_len_cached = 2

    def __init__(self) -> None:
        super().__init__()
        self.max_seq_len_cached = 2
        self.register_buffer("table", torch.ones(2))


class Model(nn.Module):
    """Ids of 5 → states of 2, doubled, tripled and quintupled, +1 each → their norm's half → logits."""

    dtype = torch.float32

    def __init__(self, *, to_head=True, calls=3):
        super().__init__()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=2))
        self.embed = nn.Embedding(5, 2)
        self.layers = nn.ModuleList(Layer(f) for f in (2.0, 3.0, 5.0))
        self.tables = Table()
        self.head = nn.Linear(2, 5, bias=False)
        self._to_head, self._calls = to_head, calls
        with torch.no_grad():
            self.embed.weight.copy_(torch.arange(10.0).view(5, 2))
            self.head.weight.fill_(1.0)

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, use_cache):
        assert not use_cache
        self.tables.max_seq_len_cached, self.tables.table = input_ids.shape[1], torch.zeros(9)
        hidden, shift = self.embed(input_ids), torch.ones(1)
        for layer in self.layers[: self._calls]:
            hidden = layer(hidden, shift=shift)
        return SimpleNamespace(logits=self.head(hidden / 2) if self._to_head else hidden)


def skeleton(**model: Any) -> Skeleton:
    with torch.no_grad():
        made = Skeleton(cast("Any", Model(**model)), "layers", "sdpa")
        made.learn_layer_output(lambda call, hidden: call.run(made.layers[0], hidden))
        return made


def test_what_layers_are_called_with_is_recorded_and_they_do_not_run():
    recorded = skeleton().record(IDS)
    assert recorded.embedded.tolist() == [[[2, 3], [4, 5], [6, 7]]]
    assert [call.at for call in recorded.calls] == [0, 0, 0]
    assert all(call.kwargs["shift"].item() == 1 for call in recorded.calls)


def test_the_heads_input_and_logits_are_the_forwards_of_a_given_state():
    made, hidden = skeleton(), torch.tensor([[[2.0, 4.0], [6.0, 8.0], [0.0, 2.0]]])
    assert made.finish(IDS, hidden).tolist() == (hidden / 2).tolist()
    assert made.own_logits(IDS, hidden)[0, :, 0].tolist() == [3, 7, 1]
    made.embeds_at_end = False
    assert made.finish(IDS, hidden).tolist() == (hidden / 2).tolist()


def test_run_whole_it_calls_each_layer_where_the_forward_does():
    made, order = skeleton(), []

    def run(index, args, kwargs):
        order.append(index)
        return made.layers[index](*args, **kwargs)

    # ((2·2 + 1)·3 + 1)·5 + 1 = 81 of the first token's first feature.
    assert made.run_whole(IDS, run)[0, 0].tolist() == [40.5, 55.5]
    assert made.logits_whole(IDS, run)[0, 0].tolist() == [96.0] * 5
    assert order == [0, 1, 2] * 2


def test_every_forward_starts_from_the_tables_as_they_were_built():
    made = skeleton()
    before = made.model.tables.max_seq_len_cached, made.model.tables.table
    made.record(IDS)
    # As a forward has left them, until the next one.
    assert made.model.tables.max_seq_len_cached == 3
    made._rewind()
    assert made.model.tables.max_seq_len_cached == 2 == before[0]
    assert made.model.tables.table.tolist() == [1, 1]


def test_a_forward_that_calls_fewer_layers_or_no_head_is_told():
    with pytest.raises(NotSeparable, match="has 3 layers, and its forward calls 2"):
        skeleton(calls=2)
    with pytest.raises(NotSeparable, match="calls no decoder layer"):
        skeleton(calls=0)
    with pytest.raises(
        UnsupportedModel, match="Model: its forward does not call its output embedding"
    ):
        skeleton(to_head=False)


def test_layers_are_told_by_their_full_names_and_have_left_the_model():
    made = skeleton()
    assert made.layer_names == ["layers.0", "layers.1", "layers.2"]
    names = ["layers.2.factor", "layers.17.x", "layers.x", "head.weight", "other.layers.1.x"]
    assert [made.layer_of(name) for name in names] == [2, 17, None, None, None]
    assert sorted(made.tensor_names()) == sorted(
        ["embed.weight", "head.weight", "tables.table", *(f"{n}.factor" for n in made.layer_names)]
    )
    assert made.embedding_name == "embed.weight"


@pytest.mark.parametrize(
    ("dtype", "strict", "half"),
    [(torch.bfloat16, True, False), (torch.float16, True, True), (torch.float32, False, False)],
)
def test_what_the_library_keeps_in_float32_depends_on_the_short_dtype(dtype, strict, half):
    model = SimpleNamespace(
        dtype=dtype,
        _keep_in_fp32_modules_strict=["e_score_correction_bias"],
        _keep_in_fp32_modules=["wo.*.scale"],
    )
    kept = [
        kept_dtype(cast("nn.Module", model), name) is torch.float32
        for name in ("layers.1.gate.e_score_correction_bias", "wo.3.scale", "layers.1.gate.weight")
    ]
    assert kept == [strict, half, False]
