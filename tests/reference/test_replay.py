"""A replay: the same micro-batches as the engine's, and how far its scores may be from the stored."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET
from support.models import random_plan

from scoremode.engines.base import Schedule, Work
from scoremode.errors import ReferenceUnusable
from scoremode.head.project import Head, score_rows
from scoremode.reference import replay as module
from scoremode.reference.replay import Replay, compare_base, replay
from scoremode.results.scores import Scores

CPU = torch.device("cpu")
HEAD = Head(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)), None, 1.0, None, 30)


def plan_of(lengths: list[int]):
    """Windows of these lengths, scored from positions that differ."""
    stop = np.cumsum(lengths)
    first = 1 + np.arange(len(lengths)) % 3
    return replace(random_plan(), start=stop - lengths, stop=stop, first=first)


def reference_of(plan, schedule: Schedule) -> Any:
    """A reference as `replay` asks for it, scored as the engine would."""
    works = Work.passes(plan, schedule)
    states = torch.randn(plan.scored, 8, generator=torch.Generator().manual_seed(1))
    target = np.arange(plan.scored, dtype=np.int32) % 30
    spans = [span for work in works for span in work.spans]
    logprob = [
        score_rows(HEAD, states[b:e], torch.from_numpy(target[b:e]).long()).logprob
        for b, e in spans
    ]
    positions = [np.arange(window.first, len(window.targets) + 1) for window in plan]
    scores = Scores(
        window=np.repeat(np.arange(len(plan), dtype=np.int32), plan.counts),
        position=np.concatenate(positions).astype(np.int32),
        index=target,
        target=target,
        logprob=torch.cat(logprob).numpy(),
        top1=target,
        top1_logprob=torch.cat(logprob).numpy(),
    )
    rows = sum(e - b for b, e in works[0].spans)
    return SimpleNamespace(
        path="base",
        scores=scores,
        head=lambda device: HEAD,
        states=lambda spans: torch.cat([states[b:e] for b, e in spans]),
        record=SimpleNamespace(
            kept=SimpleNamespace(states=SimpleNamespace(files=[SimpleNamespace(rows=rows)])),
            schedule=SimpleNamespace(batch_windows=schedule.batch_windows, batch_tokens=UNSET),
            schedule_change=UNSET,
            document={"engine": {"engine": "torch"}},
        ),
    )


@pytest.mark.parametrize("change", [None, {"after_passes": 1, "batch_windows_before": 2}])
@pytest.mark.parametrize("pass_windows", [5, 99])
def test_rows_go_through_the_head_in_the_engines_calls(pass_windows, change, monkeypatch):
    plan = plan_of([8, 8, 8, 5, 5, 8, 8, 4])
    reference = reference_of(plan, Schedule(pass_windows, 2))
    if change is not None:
        reference.record.schedule.batch_windows = 1
        reference.record.schedule_change = SimpleNamespace(**change)
    calls = []

    def scored(head, states, target):
        calls.append(len(states))
        return score_rows(head, states, target)

    monkeypatch.setattr(module, "score_rows", scored)
    found = replay(reference, CPU)
    first = Work.passes(plan, Schedule(pass_windows, 2))[0]
    assert calls == [end - begin for begin, end in first.spans]
    assert found.bitwise and found.rows == sum(calls) and found.worst == 0


def test_about_as_many_rows_as_a_tile_has_are_replayed(monkeypatch):
    monkeypatch.setattr(module, "tile_of", lambda device: (10, 4096))
    plan = plan_of([8, 8, 8, 8])
    assert replay(reference_of(plan, Schedule(4, 1)), CPU).rows == plan.offsets[2]
    assert replay(reference_of(plan, Schedule(4, 4)), CPU).rows == 10


def test_scores_that_rounding_does_not_explain_are_refused():
    reference = reference_of(plan_of([8, 8]), Schedule(2, 1))
    stored = reference.scores.logprob
    near = compare_base(reference, 3, stored[3:] + 1e-7, "float32")
    assert not near.bitwise and near.rms == pytest.approx(1e-7, rel=1e-6)
    for wrong in (stored[3:] + 0.1, stored[3:] * np.nan):
        with pytest.raises(ReferenceUnusable, match="base: replayed, its log-probabilities differ"):
            compare_base(reference, 3, wrong, "float32")
    with pytest.raises(ReferenceUnusable, match="scores where rows 3 to"):
        compare_base(reference, 3, stored, "float32")


def test_two_replays_are_joined_by_their_rows():
    joined = Replay(3, True, 0.0, 0.0).joined(Replay(1, False, 2e-6, 2e-6))
    assert joined == Replay(4, False, pytest.approx(1e-6), 2e-6)
