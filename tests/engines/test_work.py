"""Work: passes of a plan, and what a part of one is."""

import numpy as np
import pytest
from support.models import random_plan

from scoremode.engines.base import Extras, Schedule, Work

SCHEDULE = Schedule(pass_windows=8, batch_windows=3)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_passes_are_numbered_from_the_plans_first_one(first):
    plan, extras = random_plan(windows=23), Extras(full=True)
    passes = Work.passes(plan, SCHEDULE, first, None, extras)
    assert [(w.number, w.windows) for w in passes] == [
        (i, windows) for i, windows in enumerate(SCHEDULE.passes(plan)) if i >= first
    ]
    assert all(w.extras is extras and w.put is None for w in passes)


def test_spans_and_tokens_are_those_of_its_windows_alone():
    plan = random_plan(windows=23)
    work = Work.passes(plan, SCHEDULE)[1]
    rows = np.concatenate([np.arange(*span) for span in work.spans])
    assert rows.tolist() == list(range(plan.offsets[8], plan.offsets[16]))
    assert work.tokens == plan.lengths[8:16].sum()
    assert work.longest == plan.lengths[8:16].max()


@pytest.mark.parametrize("most", [1, 3, 5, 99])
def test_it_is_cut_between_micro_batches(most):
    plan = random_plan(windows=23)
    work = Work.passes(plan, SCHEDULE)[0]
    parts = work.cut(most)
    assert [batch for part in parts for batch in part.batches] == work.batches
    assert all(len(part.windows) <= max(most, 3) and part.number == 0 for part in parts)
    assert len(parts) == {1: 3, 3: 3, 5: 2, 99: 1}[most]


def test_a_cut_goes_on_while_the_next_micro_batch_fits():
    plan, schedule = random_plan(windows=23), Schedule(20, 3)
    (work, _) = Work.passes(plan, schedule)
    assert [list(part.windows) for part in work.cut(7)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 17],
        [18, 19],
    ]
    assert [len(part.windows) for part in work.part(range(0, 7)).cut(1)] == [3, 3, 1]
