"""Means over Scores, in pieces a block of the text, and all their intervals at once.

A `Mean` keeps what it needs of every block, so that any number of means (of several columns, or of
groups of tokens) is resampled in one go, each time with the same blocks: what two models or two
groups have in common cancels in their difference. A mean over a group has the blocks that hold one
of its tokens; the others say nothing about it.

The upper end of a distribution is here as well: its curve in few points, and intervals of percentiles,
which are made of the interval of a mean, the share up to them.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scoremode.results.record.section import Metric
from scoremode.results.statistics.bootstrap import (
    MIN_BLOCKS,
    WHOLE,
    clusters,
    percentile_interval,
    resampled,
    too_few,
)

Floats = NDArray[np.float64]
Key = TypeVar("Key")
_BOUNDLESS = (-np.inf, np.inf)
# A KLD below this is what float32 leaves of an exact 0; a logarithmic axis has no 0 anyway.
FLOOR = 1e-8
# In decades: a third of a pixel where a thousand show six decades.
_FINE = 0.002


@dataclass(frozen=True, eq=False)
class Mean:
    """`then`(Σ sums / Σ totals) over `n` evaluations.

    - `sums`, `totals` float64 [blocks]: of those blocks that weigh anything.
    - `least`, `most`: of the values, beyond which no end of an interval lies: 0 and 1 of a share.
    - `then`: a growing function of the mean, such as exp; takes and gives arrays.
    """

    sums: Floats
    totals: Floats
    n: int
    least: float
    most: float
    then: Callable[[Floats], Floats] = lambda mean: mean

    @property
    def value(self) -> float:
        return self.at(self.sums.sum() / self.totals.sum())

    def at(self, mean: float) -> float:
        """Returns what a mean stands for."""
        with np.errstate(over="ignore"):  # infinity is a value here, for the caller to refuse
            return float(self.then(np.asarray(mean)))

    def through(self, then: Callable[[Floats], Floats]) -> "Mean":
        return replace(self, then=then)


class Blocks:
    """Tells which block of the text each evaluation lies in, and what it weighs.

    - `index`: int [N], places in the token stream, or conversations (`places.Places.numbered`).
    - `length`: tokens of a block, at least a window's length; 1 of conversations.
    - `weights`: float64 [N], what each evaluation counts; None for one each.
    """

    def __init__(self, index: NDArray[np.integer], length: int, weights: Floats | None = None):
        self.length = length
        self.weights = np.ones(len(index)) if weights is None else weights
        self._block = index.astype(np.int64) // length
        self._count = int(self._block.max()) + 1

    @classmethod
    def same(cls, blocks: "Blocks") -> "Blocks":
        """Copies blocks so that each evaluation counts as one, whatever it weighs."""
        made = cls.__new__(cls)
        made.length, made._block, made._count = blocks.length, blocks._block, blocks._count
        made.weights = np.ones(len(blocks._block))
        return made

    def only(self, rows: NDArray[np.bool_]) -> "Blocks":
        """The blocks of some evaluations; `rows`: bool [N]."""
        made = Blocks.__new__(Blocks)
        made.length, made._count = self.length, self._count
        made._block, made.weights = self._block[rows], self.weights[rows]
        return made

    @property
    def filled(self) -> int:
        """The number of blocks that weigh anything."""
        return int((np.bincount(self._block, weights=self.weights) > 0).sum())

    def mean(self, values: NDArray, per: NDArray | None = None) -> Mean | None:
        """The weighted mean of `values` [N], or Σ values / Σ `per`; None where all of that is 0."""
        everything = np.zeros(len(self._block), np.int64)
        (found,) = self.means_by(everything, 1, {"": values}, per)
        return found.get("")

    def means_by(
        self,
        group: NDArray[np.integer],
        groups: int,
        columns: Mapping[str, NDArray],
        per: NDArray | None = None,
    ) -> list[dict[str, Mean]]:
        """The `mean` of every column over its evaluations, for each of the groups 0 … groups - 1.

        `group`: int [N]. A group that weighs nothing has no means.
        """
        cell = group * np.int64(self._count) + self._block
        shape = (groups, self._count)

        def sums(values: NDArray) -> Floats:
            flat = np.bincount(cell, weights=values, minlength=groups * self._count)
            return flat.astype(np.float64, copy=False).reshape(shape)

        weight = sums(self.weights)
        totals = weight if per is None else sums(per * self.weights)
        of = {name: sums(column * self.weights) for name, column in columns.items()}
        counts = np.bincount(group, minlength=groups)
        bounds = {
            name: (float(column.min()), float(column.max())) if per is None else _BOUNDLESS
            for name, column in columns.items()
        }
        found = []
        for g in range(groups):
            filled = weight[g] > 0
            weighs = totals[g].sum() > 0
            found.append(
                {
                    name: Mean(column[g][filled], totals[g][filled], int(counts[g]), *bounds[name])
                    for name, column in of.items()
                    if weighs
                }
            )
        return found


def mean_ends(means: Sequence[Mean], block_length: int) -> Floats | None:
    """float64 [2, M]: the 95 % intervals of means that have the same blocks, from the same resamples;
    None below MIN_BLOCKS blocks. Not finite where a resample divides by 0."""
    blocks = len(means[0].sums)
    with np.errstate(invalid="ignore"):
        if block_length != WHOLE or blocks < MIN_BLOCKS:
            drawn = draws(means)
            return None if drawn is None else percentile_interval(drawn, blocks)
        sums, totals = (np.stack([getattr(m, of) for m in means]) for of in ("sums", "totals"))
        least, most = (np.array([getattr(m, of) for m in means]) for of in ("least", "most"))
        return np.clip(clusters(sums, totals).ends, least, most)


def draws(means: Sequence[Mean]) -> Floats | None:
    """float64 [RESAMPLES, M]: means that have the same blocks, in the same resamples of them; None
    below MIN_BLOCKS blocks."""
    if len(means[0].sums) < MIN_BLOCKS:
        return None
    return resampled(np.stack([m.sums for m in means]), np.stack([m.totals for m in means]))


def estimates(means: Mapping[Key, Mean], block_length: int) -> dict[Key, Metric]:
    """The value and interval of every mean. Those with as many blocks share their resamples."""
    by_blocks: dict[int, list[Key]] = defaultdict(list)
    for key, mean in means.items():
        by_blocks[len(mean.sums)].append(key)
    intervals: dict[Key, tuple[float, float]] = {}
    for keys in by_blocks.values():
        if (ends := mean_ends([means[key] for key in keys], block_length)) is None:
            continue
        for key, (low, high) in zip(keys, ends.T, strict=True):
            low, high = means[key].at(low), means[key].at(high)
            if np.isfinite([low, high]).all():
                intervals[key] = low, high
    found = {}
    for key, mean in means.items():
        interval, note = intervals.get(key), None
        if interval is None:
            note = too_few(len(mean.sums), block_length)
            if len(mean.sums) >= MIN_BLOCKS:
                note = "resampled blocks may sum to no finite ratio"
        found[key] = Metric(mean.value, interval, mean.n, note)
    return found


def curve(values: Floats, most: int = 200) -> tuple[Floats, NDArray[np.int64], float]:
    """At most `most` points of the curve x → how many of `values` are at least x, on logarithmic axes.

    Returns x (float64, rising, from FLOOR on), the counts (int64), and by how many decades straight
    lines between the points miss the rest: each next point is the one that is missed most.
    """
    ordered, counts = np.unique(values, return_counts=True)
    above = counts[::-1].cumsum()[::-1]
    seen = ordered >= FLOOR
    x, count = ordered[seen], above[seen]
    if len(x) < 3:
        return x, count, 0.0
    points = np.stack([np.log10(x), np.log10(count)], 1)
    chosen = [0, len(x) - 1]
    waiting = [_furthest(points, *chosen)]
    while len(chosen) < most and -waiting[0][0] > _FINE:
        _, at, begin, end = heapq.heappop(waiting)
        chosen.append(at)
        for part in ((begin, at), (at, end)):
            heapq.heappush(waiting, _furthest(points, *part))
    rows = np.sort(chosen)
    return x[rows], count[rows], -waiting[0][0]


def _furthest(points: Floats, begin: int, end: int) -> tuple[float, int, int, int]:
    """Minus the largest distance from the straight line between two points, and where that is."""
    if end - begin < 2:
        return 0.0, begin, begin, end
    line = points[end] - points[begin]
    inside = points[begin + 1 : end] - points[begin]
    away = np.abs(inside[:, 0] * line[1] - inside[:, 1] * line[0]) / np.hypot(*line)
    at = int(away.argmax())
    return -float(away[at]), begin + 1 + at, begin, end


def band(values: Floats, at: Sequence[float], blocks: Blocks) -> list[Metric]:
    """The share of `values` [N] that is at least each of `at`, with its interval; each value counts
    as one."""
    once = Blocks.same(blocks)
    means: dict[int, Mean] = {}
    for i, x in enumerate(at):
        mean = once.mean(values >= x)
        assert mean is not None
        means[i] = mean
    return list(estimates(means, blocks.length).values())


@dataclass(frozen=True, eq=False)
class Percentile:
    """A percentile of values, and the share of them up to it, whose interval gives the percentile's.

    - `share`: each value counts as one. `beyond`: blocks that hold a value above it, `of` which kind.
    - `ordered`: all values.
    """

    percent: float
    value: float
    share: Mean
    beyond: int
    of: str
    ordered: Floats

    def metric(self, share: Metric) -> Metric:
        """The percentile with its interval; `share`: what `estimates` makes of the share.

        By Woodruff's inversion: the percentiles that belong to the two ends of the share's interval are
        this one's (Woodruff, "Confidence intervals for medians and other position measures", JASA 47,
        1952). There is none where fewer than MIN_BLOCKS blocks hold a value beyond, or where no value
        lies at an end.
        """
        interval, note = None, share.note
        if share.ci95 is not None:
            # Of n values a percentile lies between two: the share up to it is a little more or less.
            low, high = (self.percent / 100 + end - share.value for end in share.ci95)
            if self.beyond < MIN_BLOCKS or high >= 1 or low <= 0:
                few = self.beyond
                note = f"{few} {self.of}{'s' * (few != 1)} with a target beyond it: too few to tell"
            else:
                ends = np.quantile(self.ordered, [low, high])
                interval = float(ends[0]), float(ends[1])
        return Metric(self.value, interval, len(self.ordered), note)


def percentile(
    values: Floats, percent: float, value: float, blocks: Blocks, ordered: Floats
) -> Percentile:
    """The percentile `value` of `values` [N], which rise in `ordered`."""
    mean = Blocks.same(blocks).mean(values <= value)
    assert mean is not None
    beyond = int((mean.totals - mean.sums > 0).sum())
    of = "block" if blocks.length > 1 else "conversation"
    return Percentile(percent, value, mean, beyond, of, ordered)


def percentile_intervals(
    values: Floats, percentiles: Mapping[float, float], blocks: Blocks
) -> dict[float, Metric]:
    """Percentiles (percent → value) of `values` [N] with their intervals."""
    ordered = np.sort(values)
    found = {
        percent: percentile(values, percent, value, blocks, ordered)
        for percent, value in percentiles.items()
    }
    shares = estimates({percent: one.share for percent, one in found.items()}, blocks.length)
    return {percent: one.metric(shares[percent]) for percent, one in found.items()}
