"""Windows of several lengths in one micro-batch: what they are filled up with never shows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import ARCHITECTURES, VOCAB, make_checkpoint
from support.uneven_plans import unequal_plan

from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.passes.microbatch import (
    filled_ids,
    may_pad,
    most_filled,
    prove_filled,
    state_rows,
)
from scoremode.errors import UnsupportedModel
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset


@pytest.fixture
def plan() -> Plan:
    """Windows of 4, 6 and 3 tokens, with gaps."""
    counted = np.array([0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1], np.bool_)
    return Plan(
        preset("chat").resolve(None),
        np.arange(10, 23, dtype=np.int32),
        np.array([0, 4, 10]),
        np.array([4, 10, 13]),
        np.ones(3, np.int64),
        counted=counted,
        conversation=np.arange(3, dtype=np.int32),
    )


def test_windows_are_filled_up_with_their_last_input(plan):
    ids = filled_ids(plan, range(3))
    assert ids.dtype == np.int32
    assert ids.tolist() == [
        [10, 11, 12, 12, 12],
        [14, 15, 16, 17, 18],
        [20, 21, 21, 21, 21],
    ]
    assert filled_ids(plan, range(2, 3)).tolist() == [[20, 21]]


def test_targets_are_predicted_from_the_input_before_them(plan):
    rows = state_rows(plan, range(3))
    inputs = filled_ids(plan, range(3)).ravel()[rows]
    targets = plan.tokens[plan.targets()[2]]
    assert inputs.tolist() == (targets - 1).tolist() and len(rows) == plan.scored == 6


def test_the_window_that_is_filled_up_most(plan):
    assert most_filled(plan, [range(2), range(2, 3)]) == (0, 0)
    assert most_filled(plan, [range(1), range(1, 3)]) == (1, 1)
    assert most_filled(plan, [range(1), range(1, 2)]) is None


@pytest.mark.parametrize(
    ("config", "pads"),
    [
        ({}, True),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, True),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, True),
        ({"rope_parameters": {"full": {"rope_type": "yarn"}, "other": {"rope_type": "default"}}}, True),
        ({"rope_parameters": {"full": {"rope_type": "longrope"}, "sliding": {}}}, False),
        ({"rope_parameters": {"rope_type": "dynamic"}}, False),
        ({"rope_scaling": {"type": "dynamic"}}, False),
        ({"rope_parameters": {"rope_type": "tomorrow's"}}, False),
    ],
)  # fmt: skip
def test_rotations_that_follow_from_the_longest_position_are_not_padded(config, pads):
    assert may_pad(SimpleNamespace(**config), Windows()) == pads


def test_what_spans_a_window_is_not_padded():
    windows = Windows()
    windows.are_spanned = True
    assert not may_pad(SimpleNamespace(), windows)


def test_states_that_change_with_what_fills_up_are_refused():
    states = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    more = torch.cat([states, states])
    prove_filled("M", states, more)
    prove_filled("M", states, more + 0.01 * more.flip(0))
    with pytest.raises(UnsupportedModel, match=r"M: a window's states change .* --batch-size 1"):
        prove_filled("M", states, more + 0.3 * more.flip(0))


# They see what comes after a token, and are refused whatever is filled up.
CAUSAL = [name for name in ARCHITECTURES if name not in ("bert", "electra")]


@pytest.mark.parametrize("name", CAUSAL)
def test_scores_are_those_of_each_window_by_itself(name, tmp_path):
    model, plan = make_checkpoint(tmp_path / "model", name), unequal_plan(12, VOCAB)
    engine = make_engine(model, dtype="float32")
    assert engine.schedule(plan).pads
    together = score(engine, plan)
    alone = score(make_engine(model, dtype="float32", batch_windows=1), plan)
    batches = engine.schedule(plan).batches(plan, range(len(plan)))
    assert len(batches) < len(plan) and most_filled(plan, batches) is not None
    assert np.array_equal(together.target, alone.target)
    np.testing.assert_allclose(together.logprob, alone.logprob, rtol=0, atol=2e-4)


ROTATIONS = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_windows_on_both_sides_of_a_rotations_first_length_are_scored_apart(name, tmp_path):
    """Whichever came before: a rotation that was made longer is no shorter window's."""

    def change(settings):
        settings["rope_parameters"] = ROTATIONS[name]
        settings["max_position_embeddings"] = 32 if name == "dynamic" else 64

    model = make_checkpoint(tmp_path / "model", "llama", change=change)
    plan = unequal_plan(8, VOCAB, longest=60)
    assert plan.lengths.min() < 32 < plan.lengths.max()
    engine = make_engine(model, dtype="float32")
    assert not engine.schedule(plan).pads
    together = score(engine, plan)
    for w in range(len(plan)):
        alone = score(make_engine(model, dtype="float32"), plan.windows_at(np.array([w])))
        found = together.logprob[together.window == w]
        np.testing.assert_allclose(found, alone.logprob, rtol=0, atol=2e-5)
