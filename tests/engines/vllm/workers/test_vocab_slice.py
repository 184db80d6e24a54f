"""A rank's head over chunks of rows; vLLM's processor and ranks are stood in for."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from scoremode.engines.vllm.prompts import Kind
from scoremode.engines.vllm.workers import vocab_slice as shard
from scoremode.engines.vllm.workers.vocab_slice import ShardedHead

GENERATOR = torch.Generator().manual_seed(0)
ROWS, WIDTH, ENTRIES, PADDED = 23, 8, 50, 64
WEIGHT = torch.randn(PADDED, WIDTH, generator=GENERATOR)
HIDDEN = torch.randn(ROWS, WIDTH, generator=GENERATOR)
TARGET = torch.randint(0, 40, (ROWS,), generator=GENERATOR)


class Processor(torch.nn.Module):
    """As vLLM's `LogitsProcessor` on one rank: padding at the end is cut off when it gathers."""

    org_vocab_size = ENTRIES

    def forward(self, lm_head: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._gather_logits(hidden_states @ lm_head.weight.T)

    def _gather_logits(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, :ENTRIES]


class Model(torch.nn.Module):
    """A model that is only a head, and doubles its states before it."""

    def __init__(self):
        super().__init__()
        self.processor = Processor()
        self.lm_head = SimpleNamespace(
            weight=WEIGHT,
            shard_indices=SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=ENTRIES),
        )
        self.sizes: list[int] = []

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(hidden))
        return self.processor.forward(self.lm_head, 2 * hidden)


@pytest.fixture
def model(monkeypatch) -> Model:
    distributed = ModuleType("vllm.distributed")
    setattr(distributed, "get_tensor_model_parallel_world_size", lambda: 1)  # noqa: B010
    processors = ModuleType("vllm.model_executor.layers.logits_processor")
    setattr(processors, "LogitsProcessor", Processor)  # noqa: B010
    for parent in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for module in (distributed, processors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Model()


class Reference:
    """A base whose logits are minus the model's."""

    extra_sums = None

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def logits(self, spans, device, tile):
        rows = torch.cat([torch.arange(*span) for span in spans])
        z = -2 * HIDDEN[rows] @ WEIGHT.T

        class Logits:
            def load(self, begin, end):
                self.here = slice(begin, end)

            def __call__(self, block, out=None):
                tile = z[block, self.here]
                return tile.clone() if out is None else out.copy_(tile)

        return Logits()


def truth(entries: int) -> torch.Tensor:
    return (2 * HIDDEN.double() @ WEIGHT.double().T)[:, :entries].log_softmax(1)


@pytest.mark.parametrize("vocabulary", [None, 40])
@pytest.mark.parametrize(("chunk", "sizes"), [(1, [8, 8, 7]), (2, [12, 11]), (9, [23])])
def test_scores_are_those_of_all_logits_chunk_by_chunk(
    model, chunk, sizes, vocabulary, monkeypatch
):
    """Chunks of equal count, over entries without the padding; the states come row by row, once."""
    monkeypatch.setattr(shard, "_CHUNK_BYTES", {"cpu": chunk * 10 * ENTRIES * 4})
    head, got = ShardedHead(model, "model"), torch.zeros(ROWS, WIDTH)

    def given(part: slice, states: torch.Tensor) -> None:
        assert not got[part].any()
        got[part] = states

    scores = head.score(HIDDEN, TARGET, Kind(vocabulary), given)
    z = truth(vocabulary or ENTRIES)
    torch.testing.assert_close(
        scores.logprob, z.gather(1, TARGET[:, None])[:, 0], rtol=0, atol=1e-5
    )
    assert torch.equal(scores.top1, z.argmax(1)) and scores.entropy is not None
    torch.testing.assert_close(scores.entropy, -(z.exp() * z).sum(1), rtol=0, atol=1e-5)
    # The first run tells how wide the logits are.
    assert model.sizes == [1, *sizes]
    # What the projection was given, not the model's own states before it.
    assert torch.equal(got, 2 * HIDDEN)
    gathered = head.gathered(HIDDEN, TARGET, vocabulary)
    torch.testing.assert_close(gathered.logprob, scores.logprob, rtol=0, atol=1e-5)
    assert head.score(HIDDEN, TARGET, Kind(entropy=False)).entropy is None


@pytest.mark.parametrize("vocabulary", [None, 40])
def test_a_comparison_takes_the_rows_that_it_is_told(model, vocabulary, monkeypatch):
    monkeypatch.setattr(shard, "_CHUNK_BYTES", {"cpu": 10 * ENTRIES * 4})
    head, kind = ShardedHead(model, "model"), Kind(vocabulary, compared=True, full=True)
    head.score(HIDDEN, TARGET, kind)
    head.compare_with(Reference(vocabulary or ENTRIES))
    rows = np.arange(ROWS)
    found = head.compare(HIDDEN, TARGET, kind, rows)
    q = truth(vocabulary or ENTRIES)
    p = (-2 * HIDDEN.double() @ WEIGHT.double().T)[:, : q.shape[1]].log_softmax(1)
    torch.testing.assert_close(found["kld"], (p.exp() * (p - q)).sum(1), rtol=0, atol=1e-4)
    assert torch.equal(found["base_top1"], p.argmax(1)) and len(found["jsd"]) == ROWS
    turned = head.compare(HIDDEN, TARGET, kind, rows[::-1].copy())
    torch.testing.assert_close(
        turned["base_top1_logprob"], p.amax(1).flip(0), rtol=0, atol=1e-5, check_dtype=False
    )


def test_a_reference_over_other_entries_is_not_compared_with(model):
    head = ShardedHead(model, "model")
    head.score(HIDDEN, TARGET, Kind())
    head.compare_with(Reference(ENTRIES))
    with pytest.raises(ValueError, match="over 40 entries, where the reference has 50"):
        head.compare(HIDDEN, TARGET, Kind(40, compared=True), np.arange(ROWS))


def test_a_head_describes_what_it_ran_on(model):
    head = ShardedHead(model, "model")
    assert head.describe()["entries"] is None
    head.score(HIDDEN, TARGET, Kind())
    assert head.describe() == {
        **{"entries": ENTRIES, "ranks": 1, "gathered": False, "logits": "model"},
        **{"width": WIDTH, "dtype": "float32"},
    }
