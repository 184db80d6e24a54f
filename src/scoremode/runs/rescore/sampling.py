"""Micro-batches drawn from a finished run, to be scored once more as they were.

A score depends on its micro-batch: a matrix product may sum in another order for another number of
rows. So whole micro-batches are drawn, by the record's own schedule, and run again as they were.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from scoremode.engines.base import Schedule
from scoremode.results.record.definition import Record
from scoremode.results.scores import Scores
from scoremode.text.plan import Plan


@dataclass(frozen=True, eq=False)
class Sample:
    """Some windows of a plan, in micro-batches of one size.

    - `windows` int64 [W]: which of the whole plan's; `plan`: those alone.
    - `batch_windows`: windows of every one of the micro-batches, which follow one another.
    - `offsets` int64 [W]: rows of the whole plan before each window.
    - `chunk_tokens`, `row_tokens`: as the run's schedule has them.
    """

    windows: NDArray[np.int64]
    plan: Plan
    batch_windows: int
    offsets: NDArray[np.int64]
    chunk_tokens: int | None = None
    row_tokens: int | None = None

    def schedule(self, pass_windows: int) -> Schedule:
        """The schedule that keeps these micro-batches, in passes of about so many windows."""
        whole = max(1, pass_windows // self.batch_windows)
        return _Batches(
            whole * self.batch_windows,
            self.batch_windows,
            self.chunk_tokens,
            row_tokens=self.row_tokens,
        )

    def in_whole(self, row: int) -> int:
        """The row of the whole plan that is this one here."""
        w = int(np.searchsorted(self.plan.offsets, row, side="right")) - 1
        return int(self.offsets[w]) + row - int(self.plan.offsets[w])

    def renamed(self, scores: Scores) -> Scores:
        """Scores of `plan`, with the whole plan's numbers of its windows."""
        return replace(scores, window=self.windows[scores.window].astype(np.int32))


class _Batches(Schedule):
    """One whose micro-batches are so many windows, whatever their lengths: they were drawn so."""

    def batches(self, plan: Plan, windows: range) -> list[range]:
        cuts = range(windows.start, windows.stop, self.batch_windows)
        return [range(i, min(i + self.batch_windows, windows.stop)) for i in cuts]


def micro_batches(record: Record, plan: Plan) -> list[range]:
    """The windows of each micro-batch of a finished run, by its record's schedule."""
    assert record.schedule
    after = Schedule(**msgspec.to_builtins(record.schedule))
    before, passes_before = after, 0
    if change := record.schedule_change:
        before = replace(after, batch_windows=change.batch_windows_before, split=1)
        passes_before = change.after_passes
    return [
        batch
        for number, windows in enumerate(after.passes(plan))
        for batch in (before if number < passes_before else after).batches(plan, windows)
    ]


def drawn_windows(
    plan: Plan,
    batches: Sequence[range],
    share: float,
    seed: int,
    chunk_tokens: int | None = None,
    row_tokens: int | None = None,
) -> list[Sample]:
    """Micro-batches drawn until they hold that share of a plan's windows, by their size.

    The same `seed` draws the same ones. `chunk_tokens`, `row_tokens`: of the run's schedule.
    """
    wanted, chosen = max(1, round(share * len(plan))), []
    for number in np.random.default_rng(seed).permutation(len(batches)):
        if sum(len(batches[n]) for n in chosen) >= wanted:
            break
        chosen.append(int(number))
    by_size: dict[int, list[range]] = {}
    for number in sorted(chosen):
        by_size.setdefault(len(batches[number]), []).append(batches[number])
    result = []
    for size, group in sorted(by_size.items(), reverse=True):
        windows = np.concatenate([np.arange(b.start, b.stop) for b in group])
        # No looks of its own: a micro-batch stays what it was.
        part = replace(plan.windows_at(windows), protocol=plan.protocol.whole())
        offsets = plan.offsets[windows]
        result.append(Sample(windows, part, size, offsets, chunk_tokens, row_tokens))
    return result


def found_probability(batches: Sequence[range], share: float, windows: int) -> float:
    """The least probability with which `drawn_windows`, its seed drawn evenly, takes a micro-batch that
    has one of so many windows, wherever these stand.

    They stand in as few micro-batches as can hold them, m of B, and as few are drawn as can hold the
    share, b: all b miss them with probability C(B - m, b) / C(B, b). Exact where all are of one size.
    """
    held = list(accumulate(sorted(map(len, batches), reverse=True)))
    wanted = max(1, round(share * held[-1]))
    drawn, changed = (
        next(n for n, sum_ in enumerate(held, 1) if sum_ >= least) for least in (wanted, windows)
    )
    every = len(batches)
    return 1 - math.comb(every - changed, drawn) / math.comb(every, drawn)
