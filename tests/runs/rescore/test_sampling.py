"""Draws: whole micro-batches as the run had them, and the rows that they are in the whole plan."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import of_sections

from scoremode.runs.rescore.rescore import drawn_windows, found_probability, micro_batches
from scoremode.text.plan import make_plan
from scoremode.text.protocol import Protocol


def plan_of(tokens: int, length: int, stride: int):
    protocol = Protocol(
        "own", context_length=length, stride=stride, tail="keep", short_text="one-window"
    )
    return make_plan(np.arange(tokens, dtype=np.int32), protocol)


@settings(max_examples=60)
@given(
    st.integers(40, 400), st.integers(4, 30), st.integers(1, 9), st.integers(1, 5),
    st.floats(0.01, 1), st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_batches_and_rows_are_those_of_the_run(tokens, length, pass_, batch, share, seed, halved):
    plan = plan_of(tokens, length, length // 2)
    change = {"after_passes": 1, "batch_windows_before": 2 * batch, "reason": "memory"}
    record = of_sections(
        schedule={"pass_windows": pass_, "batch_windows": batch},
        schedule_change=change if halved else None,
    )
    batches = micro_batches(record, plan)
    assert [w for one in batches for w in one] == list(range(len(plan)))
    drawn = drawn_windows(plan, batches, share, seed, 7 if halved else None)
    assert {part.schedule(pass_).chunk_tokens for part in drawn} == {7 if halved else None}
    windows = np.concatenate([part.windows for part in drawn])
    assert len(set(windows.tolist())) == len(windows) >= max(1, round(share * len(plan)))
    offsets = plan.offsets
    for part in drawn:
        schedule = part.schedule(pass_)
        found = [
            [int(part.windows[w]) for w in one]
            for windows in schedule.passes(part.plan)
            for one in schedule.batches(part.plan, windows)
        ]
        # Each is one of the run's own, whole.
        assert all(range(one[0], one[-1] + 1) in batches for one in found)
        for w, whole in enumerate(part.windows):
            for at in range(int(part.plan.counts[w])):
                row = int(part.plan.offsets[w]) + at
                assert part.in_whole(row) == offsets[whole] + at
            assert np.array_equal(part.plan[w].targets, plan[int(whole)].targets)
    again = drawn_windows(plan, batches, share, seed)
    assert [p.windows.tolist() for p in again] == [p.windows.tolist() for p in drawn]


@pytest.mark.parametrize(("sizes", "is_exact"), [([2] * 6, True), ([3, 3, 1, 2, 3, 1], False)])
def test_the_probability_of_finding_a_change_counts_all_draws(sizes, is_exact, monkeypatch):
    """Each order of the micro-batches once; the changed windows are the largest ones' first."""
    edges = np.cumsum([0, *sizes]).tolist()
    batches = [range(a, b) for a, b in pairwise(edges)]
    plan = plan_of(12 * 8 if is_exact else 13 * 8, 8, 8)
    assert len(plan) == edges[-1]
    draws, given = [], iter(permutations(range(6)))

    class Order:
        def permutation(self, count):
            return np.array(next(given))

    monkeypatch.setattr("scoremode.runs.rescore.rescore.np.random.default_rng", lambda _: Order())
    for _ in range(720):
        drawn = drawn_windows(plan, batches, 0.3, 0)
        draws.append({int(w) for part in drawn for w in part.windows})
    largest_first = [w for b in sorted(batches, key=len, reverse=True) for w in b]
    for changed in range(1, len(plan) + 1):
        found = np.mean([bool(draw & set(largest_first[:changed])) for draw in draws])
        least = found_probability(batches, 0.3, changed)
        assert found == pytest.approx(least) if is_exact else found >= least - 1e-12 > 0
