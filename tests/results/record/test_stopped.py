"""The record's section of a rule to stop by; tests/features/test_stop_when.py has whole runs."""

from pathlib import Path

import pytest
from support.run_folders import scores_of

from scoremode.errors import ProtocolError, RunFolderError
from scoremode.results.record.checks import check_stopped, stopping

SCORES = scores_of(0.3)
WINDOWS = len(set(SCORES.window.tolist()))


def record(**plan) -> dict:
    return {
        "protocol": {"stop_when": "kld±5%", "seed": 0},
        "plan": {"windows": WINDOWS, "planned": {"windows": WINDOWS}} | plan,
    }


def test_there_is_none_without_a_rule():
    assert stopping(SCORES, None, None, {"windows": WINDOWS}, {}) == {}
    assert (
        check_stopped(Path("run"), {"protocol": {}, "plan": {"windows": WINDOWS}}, SCORES, {}) == {}
    )
    with pytest.raises(ProtocolError):
        stopping(SCORES, "kld", 0, {"windows": WINDOWS}, {})


def test_a_run_that_went_on_behind_its_end_is_refused():
    ended = stopping(SCORES, "kld±5%", 0, {"windows": WINDOWS}, {})["stopping"]
    assert ended["after"] < WINDOWS and ended["met"]
    with pytest.raises(RunFolderError, match=f"ends the run after {ended['after']}$"):
        check_stopped(Path("run"), record(), SCORES, {})
    with pytest.raises(RunFolderError, match=r"ends the run after more$"):
        few = record() | {"protocol": {"stop_when": "kld±0.001%", "seed": 0}}
        few["plan"]["planned"]["windows"] = WINDOWS * 3
        check_stopped(Path("run"), few, SCORES, {})


def test_a_rule_and_what_was_planned_come_together():
    for change in ({"protocol": {}}, {"plan": {"windows": 3}}, {"protocol": {"seed": 1}}):
        with pytest.raises(RunFolderError, match="its protocol's stop_when is"):
            check_stopped(Path("run"), record() | change, SCORES, {})
