"""vLLM's own path: its flat log-probabilities as rows. Needs no vLLM."""

from types import SimpleNamespace

import numpy as np
import pytest

from scoremode.engines.vllm.llm import _rows, _with_last_target
from scoremode.engines.vllm.prompts import Prompt
from scoremode.errors import EngineError, InvalidMeasurement

IDS = np.array([3, 1, 4, 1], np.int32)
# Position 0 has none; 1 and 3 have the target and the likeliest, 2 is the likeliest itself.
FLAT = SimpleNamespace(
    start_indices=[0, 0, 2, 3],
    end_indices=[0, 2, 3, 5],
    ranks=[7, 1, 1, 1, 2],
    token_ids=[1, 9, 4, 8, 1],
    logprobs=[-5.0, -0.5, -0.25, -0.1, -2.0],
)


def test_rows_are_of_the_targets_and_the_likeliest():
    rows = _rows(FLAT, IDS, np.arange(1, 4))
    assert np.isnan(rows[:, 3]).all()
    assert rows[:, [0, 1, 2, 4, 5]].tolist() == [
        [1, 1, -5.0, 9, -0.5],
        [2, 4, -0.25, 4, -0.25],
        [3, 1, -2.0, 8, -0.1],
    ]
    assert _rows(FLAT, IDS, np.array([3]))[:, 0].tolist() == [3]
    assert _rows(FLAT, IDS, np.arange(0)).shape == (0, 6)


def test_a_target_that_is_not_among_them_is_no_measurement():
    with pytest.raises(InvalidMeasurement, match="no log-probability of the prompt token 2"):
        _rows(FLAT, np.array([3, 1, 5, 1], np.int32), np.arange(1, 4))


def test_only_the_last_target_may_be_none_of_the_prompts():
    assert _with_last_target(Prompt(IDS, None, 0)) is IDS
    targets = np.array([1, 4, 1, 5], np.int32)
    assert _with_last_target(Prompt(IDS, targets, 0)).tolist() == [3, 1, 4, 1, 5]
    with pytest.raises(EngineError, match="no other targets"):
        _with_last_target(Prompt(IDS, targets[::-1], 0))
