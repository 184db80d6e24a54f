"""The record's section of a rule to stop by; tests/features/test_stop_when.py has whole runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import UNSET
from support.run_folders import scores_of

from scoremode.errors import ProtocolError, RunFolderError
from scoremode.results.record.checks import check_stopped, stopping

SCORES = scores_of(0.3)
WINDOWS = len(set(SCORES.window.tolist()))


def record(planned=WINDOWS, stop_when="kld±5%", seed=0):
    drawn = planned and SimpleNamespace(windows=planned, conversations=UNSET)
    return SimpleNamespace(
        protocol=SimpleNamespace(stop_when=stop_when, seed=seed),
        plan=SimpleNamespace(windows=WINDOWS, planned=drawn),
    )


def test_there_is_none_without_a_rule():
    assert check_stopped(Path("run"), record(UNSET, UNSET, UNSET), SCORES, {}) == {}
    with pytest.raises(ProtocolError):
        stopping(SCORES, "kld", 0, WINDOWS, None, {})


def test_a_run_that_went_on_behind_its_end_is_refused():
    ended = stopping(SCORES, "kld±5%", 0, WINDOWS, None, {})
    assert ended["after"] < WINDOWS and ended["met"]
    with pytest.raises(RunFolderError, match=f"ends the run after {ended['after']}$"):
        check_stopped(Path("run"), record(), SCORES, {})
    with pytest.raises(RunFolderError, match=r"ends the run after more$"):
        check_stopped(Path("run"), record(WINDOWS * 3, "kld±0.001%"), SCORES, {})


def test_a_rule_and_what_was_planned_come_together():
    for lacking in ((WINDOWS, UNSET, UNSET), (UNSET,), (WINDOWS, UNSET)):
        with pytest.raises(RunFolderError, match="its protocol's stop_when is"):
            check_stopped(Path("run"), record(*lacking), SCORES, {})
