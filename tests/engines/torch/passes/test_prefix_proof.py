"""Windows that share their beginnings against the same windows alone, over all kinds of models; and
that what goes wrong is found."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import ARCHITECTURES, VOCAB, edit_tensors, make_checkpoint, random_plan
from support.request_plans import shared_plan
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaModel

from scoremode.engines.torch.model.prefix_tree import ForestIds
from scoremode.engines.torch.passes import microbatch as inputs_module
from scoremode.engines.torch.passes.microbatch import Inputs
from scoremode.engines.torch.passes.prefix_proof import most_shared, prove_shared, sharing_obstacle
from scoremode.errors import UnsupportedModel
from scoremode.text.batching import lay

CAUSAL = [name for name in ARCHITECTURES if name not in ("bert", "electra")]
# Why windows of the others go apart.
APART = {
    "bloom": "apart: its layer 0 is given other things in a row of trees",
    "mpt": "apart: its attention is by alibi",
    "nemotron_h": "apart: its layers of moe may see more than their masks show",
    "inkling2_text": "apart: its layers of hybrid_sliding may see more than their masks show",
    "llama4_text": "apart: its layers of chunked_attention may see more than their masks show",
}


@pytest.mark.parametrize("name", CAUSAL)
def test_scores_are_those_of_each_request_by_itself(name, tmp_path):
    model, plan = make_checkpoint(tmp_path / "model", name), shared_plan(VOCAB)
    engine = make_engine(model, dtype="float32")
    alone = score(make_engine(model, dtype="float32", batch_windows=1), plan)
    schedule = engine.schedule(plan)
    schedules = [schedule]
    if name in APART:
        assert schedule.row_tokens is None
    else:
        # Rows of several trees each, several rows of a micro-batch, several micro-batches of a pass.
        small = replace(schedule, row_tokens=40, batch_tokens=90, pass_tokens=200)
        assert len(small.passes(plan)) > 1 < len(small.batches(plan, small.passes(plan)[0]))
        schedules.append(small)
    for each in schedules:
        found = score(engine, plan, each)
        assert np.array_equal(found.target, alone.target)
        np.testing.assert_allclose(found.logprob, alone.logprob, rtol=0, atol=2e-5)
        shared = f"shared in rows of {each.row_tokens} tokens"
        assert engine.describe()["prefixes"] == APART.get(name, shared)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_llama_shares_however_it_attends(llama, attention, dtype):
    plan = shared_plan(VOCAB)
    engine = make_engine(llama, dtype=dtype, attention=attention)
    alone = make_engine(llama, dtype=dtype, attention=attention, batch_windows=1)
    assert engine.schedule(plan).row_tokens == 512
    apart = score(engine, plan).logprob - score(alone, plan).logprob
    assert np.sqrt(np.mean(apart**2)) < (1e-5 if dtype == "float32" else 0.1)


def test_plans_of_other_texts_never_share(llama):
    plan = random_plan()
    engine = make_engine(llama, dtype="float32")
    assert engine.schedule(plan).row_tokens is None
    score(engine, plan)
    assert "prefixes" not in engine.describe()


def tried(folder, dtype: str = "float32", **options) -> str | None:
    engine = make_engine(folder, dtype=dtype, **options)
    with torch.no_grad():
        parts = engine.parts
        return sharing_obstacle(parts.skeleton, parts.layers, exact=parts.is_exact)


def test_a_layer_that_sees_its_neighbour_in_the_row_is_found(llama, monkeypatch):
    """As a convolution does, which no mask holds off."""
    own = LlamaDecoderLayer.forward

    def forward(self, hidden_states, **kwargs):
        before = hidden_states.roll(1, 1)
        before[:, 0] = 0
        return own(self, hidden_states + 0.01 * before, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    assert tried(llama) == "its layer 0 sees tokens of other windows"


def test_a_layer_that_has_its_mask_of_its_own_is_found(llama, monkeypatch):
    own = LlamaAttention.forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        return own(self, hidden_states, position_embeddings, None, **kwargs)

    monkeypatch.setattr(LlamaAttention, "forward", forward)
    assert tried(llama) == "its layer 0 sees tokens of other windows"


def test_positions_by_place_are_found(llama, monkeypatch):
    own = LlamaModel.forward

    def forward(self, *args, position_ids=None, **kwargs):
        return own(self, *args, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", forward)
    assert tried(llama) == "its layer 0 is given other things in a row of trees"


def test_positions_that_a_layer_counts_by_itself_are_found(llama, monkeypatch):
    own = LlamaAttention.forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        angles = torch.arange(float(hidden_states.shape[1]))[None, :, None] * torch.ones(8)
        return own(self, hidden_states, (angles.cos(), angles.sin()), attention_mask, **kwargs)

    monkeypatch.setattr(LlamaAttention, "forward", forward)
    assert tried(llama) == "its layer 0 gives other states in a row of trees"


def test_a_forward_that_takes_no_positions_is_told(llama, monkeypatch):
    own = LlamaModel.forward

    def forward(self, input_ids, attention_mask=None, **kwargs):
        if kwargs.get("position_ids") is not None:
            raise TypeError("no positions here")
        return own(self, input_ids, attention_mask, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", forward)
    assert tried(llama) == "its forward takes no rows of trees (TypeError: no positions here)"


def test_only_a_later_kind_of_layer_may_be_wrong(llama, monkeypatch):
    """One of each kind is tried, not the first alone."""
    own = LlamaDecoderLayer.forward

    def forward(self, hidden_states, **kwargs):
        out = own(self, hidden_states, **kwargs)
        return out + out.roll(1, 1) if self.self_attn.layer_idx == 1 else out

    original = LlamaDecoderLayer.__init__

    def init(self, config, layer_idx):
        original(self, config, layer_idx)
        self.is_other = layer_idx == 1

    monkeypatch.setattr(LlamaDecoderLayer, "__init__", init)
    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    assert tried(llama) == "its layer 1 sees tokens of other windows"


def falcon_with_alibi(settings):
    settings |= {"alibi": True, "num_kv_heads": 4, "new_decoder_architecture": False}
    settings["multi_query"] = False


def gpt_neo(settings):
    for name in ("num_hidden_layers", "num_attention_heads"):
        del settings[name]
    kinds = [[["global", "local"], 1], [["global"], 1]]
    settings |= {"num_layers": 3, "num_heads": 4, "attention_types": kinds, "window_size": 64}


def openai_gpt(settings):
    settings |= {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("bloom", None, "its layer 0 is given other things in a row of trees"),
        ("falcon", falcon_with_alibi, "its attention is by alibi"),
        ("mpt", None, "its attention is by alibi"),
        ("gpt_neo", gpt_neo, "its layer 0 has a mask of places of its own"),
        ("openai-gpt", openai_gpt, "its layer 0 has a mask of places of its own"),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_what_counts_places_is_found_whatever_is_rounded(
    name, change, why, scale, tmp_path, monkeypatch
):
    """In bf16, and with weights so small that the places hardly move a state: by its effect on a few
    tokens a bias or a window of places would pass there, and move scores of long rows."""
    monkeypatch.setitem(ARCHITECTURES, name, ARCHITECTURES.get(name, {}))
    folder = make_checkpoint(tmp_path / "model", name, change=change)
    edit_tensors(folder, lambda tensors: [t.mul_(scale) for t in tensors.values() if t.dim() > 1])
    assert tried(folder, "bfloat16") == why


def test_what_layers_are_given_by_places_is_found(llama, monkeypatch):
    """Also where no state shows what layers make of it."""
    own = LlamaModel.forward
    assert tried(llama, "bfloat16", attention="eager") is None

    def forward(self, *args, **kwargs):
        by_place = torch.arange(float(kwargs["input_ids"].shape[1]))
        return own(self, *args, by_place=by_place, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", forward)
    found = tried(llama, "bfloat16", attention="eager")
    assert found == "its layer 0 is given other things in a row of trees"


def test_attention_without_a_mask_shares_nothing(llama):
    engine = make_engine(llama)
    engine.parts.skeleton.attention = "flash"
    found = sharing_obstacle(engine.parts.skeleton, engine.parts.layers, exact=True)
    assert found == "flash attention takes no mask"


def test_the_first_pass_shows_what_a_few_tokens_did_not(llama, monkeypatch):
    """Rows that are laid wrongly later on: the run ends."""
    engine, plan = make_engine(llama, dtype="float32"), shared_plan(VOCAB)
    schedule = engine.schedule(plan)
    monkeypatch.setattr(inputs_module, "lay", lambda w, row: _seen_too_far(lay(w, row)))
    with pytest.raises(UnsupportedModel, match="states change with the windows that it shares its"):
        score(engine, plan, schedule)


def _seen_too_far(forest):
    return replace(forest, end=np.minimum(forest.end + 1, forest.ids.shape[1]))


def inputs_of(windows: list[list[int]], row: int) -> Inputs:
    forest = lay([np.array(w, np.int32) for w in windows], row)
    columns = (forest.ids, forest.depth, forest.end)
    ids = ForestIds(*(torch.from_numpy(c.astype(np.int64)) for c in columns))
    return Inputs(ids, None, (), forest)


def test_the_windows_that_are_looked_at_lie_behind_others():
    first = inputs_of([[1, 2, 3], [4, 5]], 64)
    second = inputs_of([[1], [1, 2], [1, 3, 4, 5], [1, 3, 4, 6]], 64)
    found = most_shared([first, second])
    # Before [4, 5] are most tokens of others; [1, 3, 4, 5] is the first of the longest that have any.
    assert [(one.batch, one.window, one.row) for one in found] == [(0, 1, 0), (1, 2, 0)]
    assert found[0].places.tolist() == [3, 4] and found[0].depths.tolist() == [0, 1]
    assert found[1].places.tolist() == [0, 2, 3, 4] and found[1].depths.tolist() == [1, 2, 3]
    assert most_shared([inputs_of([[1, 2, 3], [4, 5]], 3)]) == []
    assert most_shared([Inputs(torch.zeros(2, 3), None, (1, 1))]) == []


@pytest.mark.parametrize("exact", [True, False])
def test_states_that_change_among_others_are_refused(exact):
    states = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    limit = 1e-3 if exact else 0.1
    prove_shared("M", states, states, exact=exact)
    prove_shared("M", states, states * (1 + limit / 2), exact=exact)
    for wrong in (states * (1 + 2 * limit), states * float("nan")):
        with pytest.raises(
            UnsupportedModel, match=r"M: a window's states change .* --batch-size 1"
        ):
            prove_shared("M", states, wrong, exact=exact)
