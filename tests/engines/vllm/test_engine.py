"""A plan's windows on their way to vLLM and back. Needs no vLLM."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.llama_cpp.files import GOLDEN

from scoremode.engines.base import Extras
from scoremode.engines.vllm.engine import _against, _to_scores
from scoremode.engines.vllm.prompts import Kind, Prompt, PromptScores, scores_of
from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import Protocol, preset


class Beside:
    """A reference of this process."""


def test_a_base_that_is_not_on_disk_is_refused():
    """A model that another engine runs can't be handed to vLLM's workers."""
    plan = SimpleNamespace(offsets=np.array([0, 5]))
    with pytest.raises(
        EngineError, match=r"Beside: vLLM's workers compare with a reference on disk"
    ):
        _against(cast(Any, plan), range(1), Extras(cast(Any, Beside())))


@pytest.fixture
def plan() -> Plan:
    protocol = Protocol("test", context_length=8, stride=4, scored="new", tail="keep")
    return make_plan(np.arange(100, 125, dtype=np.int32), protocol)


def answers(plan: Plan, windows: range) -> list[PromptScores]:
    """What vLLM gives for them: minus the target for a log-probability."""
    found = []
    for window in (plan[w] for w in windows):
        chosen = None if plan.counted is None else (window.scored - 1).astype(np.int32)
        prompt = Prompt(window.inputs, window.targets, window.first - 1, chosen=chosen)
        rows = np.zeros((len(prompt.expected), 6))
        rows[:, 0] = window.scored
        rows[:, 1], rows[:, 2] = prompt.expected, -prompt.expected
        found.append(scores_of(rows, prompt, Kind()))
    return found


def test_rows_of_a_pass_are_the_plans(plan):
    windows = range(1, 4)
    scores = _to_scores(answers(plan, windows), plan, windows)
    assert scores.window.tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert scores.target.tolist() == [*range(108, 120)]
    assert scores.logprob.dtype == np.float64 and (scores.logprob == -scores.target).all()


def test_answers_for_other_windows_are_no_measurement(plan):
    with pytest.raises(InvalidMeasurement, match="vLLM scored other targets than the plan's"):
        _to_scores(answers(plan, range(0, 2)), plan, range(1, 3))


def test_rows_of_a_reference_are_those_of_the_windows(plan):
    reference = LlamaCppReference(Path(GOLDEN))
    found = _against(plan, range(1, 4), Extras(reference, full=True))
    assert found is not None and found.reference is reference and found.full
    assert list(found.rows) == [7, 11, 15]
    assert _against(plan, range(1), Extras()) is None


def test_of_conversations_the_counted_targets_alone_are_rows(plan):
    chats = Plan(
        preset("chat").resolve(None), plan.tokens, np.array([0, 9]), np.array([9, 25]),
        np.array([2, 1]), counted=np.arange(25) % 3 == 0,
        conversation=np.arange(2, dtype=np.int32),
    )  # fmt: skip
    scores = _to_scores(answers(chats, range(2)), chats, range(2))
    assert scores.target.tolist() == [103, 106, 112, 115, 118, 121, 124]
    assert scores.position.tolist() == [3, 6, 3, 6, 9, 12, 15]
    with pytest.raises(InvalidMeasurement, match="position 3 where 6 was asked"):
        prompt = Prompt(chats[0].inputs, chats[0].targets, 1, chosen=np.array([5], np.int32))
        scores_of(np.array([[3, 106, -1, 0, 0, 0]]), prompt, Kind())
