"""A base in the same process: its states once a pass, a micro-batch at a time, and let go."""

import pytest
import torch
from support.engine import make_engine
from support.models import make_checkpoint, random_plan

from scoremode.engines.base import Schedule, Work
from scoremode.engines.torch.engine import ModelReference

CPU = torch.device("cpu")
SCHEDULE = Schedule(pass_windows=4, batch_windows=2)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return make_engine(make_checkpoint(tmp_path_factory.mktemp("base") / "m", "llama"))


def rows(plan, windows: range) -> tuple[int, int]:
    return int(plan.offsets[windows.start]), int(plan.offsets[windows.stop])


def test_every_micro_batchs_states_are_those_of_its_windows(engine, monkeypatch):
    plan, computed, moved = random_plan(windows=6), [], []
    run, expected = engine.final_states, {}
    for work in Work.passes(plan, SCHEDULE):
        for batch, part in zip(work.batches, run(work), strict=True):
            expected[rows(plan, batch)] = part

    def count(work):
        computed.append(work.windows)
        return run(work)

    monkeypatch.setattr(engine, "final_states", count)
    reference = ModelReference(engine, plan, SCHEDULE, moved.append)
    for windows in SCHEDULE.passes(plan):
        spans = [rows(plan, batch) for batch in SCHEDULE.batches(plan, windows)]
        reference.expect(spans, CPU)
        for span in spans:
            logits = reference.logits([span], CPU, (64, 64))
            assert len(expected[span]) == span[1] - span[0]
            assert torch.equal(logits._hidden, expected[span]), span
    # Once each, and nothing is kept.
    assert computed == SCHEDULE.passes(plan) and not reference._states
    assert sum(moved) == pytest.approx(float(plan.lengths.sum()))
    assert reference.vocabulary == engine.vocabulary and reference.extra_sums is None


def test_rows_that_are_no_micro_batch_are_a_mistake(engine):
    plan = random_plan(windows=6)
    reference = ModelReference(engine, plan, SCHEDULE)
    with pytest.raises(AssertionError, match="are not the rows of micro-batches"):
        reference.expect([(0, 3)], CPU)
