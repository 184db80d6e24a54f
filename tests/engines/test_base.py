"""Schedules: every window in one pass and one micro-batch, whatever the lengths."""

from itertools import pairwise

import pytest
from support.models import random_plan

from scoremode.engines.base import Schedule


@pytest.mark.parametrize("sizes", [(1, 1), (4, 2), (5, 2), (99, 4), (7, 7)])
def test_passes_and_micro_batches_have_every_window_once_and_in_order(sizes):
    plan, schedule = random_plan(windows=11, tail=6), Schedule(*sizes)
    passes = schedule.passes(plan)
    assert [w for windows in passes for w in windows] == list(range(len(plan)))
    assert all(len(windows) == sizes[0] for windows in passes[:-1])
    for windows in passes:
        batches = schedule.batches(plan, windows)
        assert [w for batch in batches for w in batch] == list(windows)
        for batch in batches:
            assert 1 <= len(batch) <= sizes[1]
            assert len({int(plan.lengths[w]) for w in batch}) == 1
        # None is cut that could go on.
        for a, b in pairwise(batches):
            assert len(a) == sizes[1] or plan.lengths[a[-1]] != plan.lengths[b[0]]


def test_halving_keeps_the_passes_and_ends_at_one_window():
    schedule = Schedule(12, 6)
    halves = []
    while schedule.halved() != schedule:
        schedule = schedule.halved()
        halves.append(schedule)
    assert halves == [Schedule(12, 3), Schedule(12, 1)]


def test_a_schedule_is_its_json():
    schedule = Schedule(12, 6)
    assert schedule.to_json() == {"pass_windows": 12, "batch_windows": 6}
    assert Schedule(**schedule.to_json()) == schedule
    # Chunks are named where there are any, and stay when micro-batches are halved.
    chunked = Schedule(12, 6, 8192)
    assert chunked.to_json() == {"pass_windows": 12, "batch_windows": 6, "chunk_tokens": 8192}
    assert Schedule(**chunked.to_json()) == chunked
    assert chunked.halved() == Schedule(12, 3, 8192)
