"""The upper end of a distribution: its curve in few points, and intervals of percentiles."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoremode.results.statistics.bootstrap import MIN_BLOCKS, Metric
from scoremode.results.statistics.means import Blocks, Mean, estimates

__all__ = ["FLOOR", "Percentile", "band", "curve", "percentile", "percentile_intervals"]

# A KLD below this is what float32 leaves of an exact 0; a logarithmic axis has no 0 anyway.
FLOOR = 1e-8
# In decades: a third of a pixel where a thousand show six decades.
_FINE = 0.002

Floats = NDArray[np.float64]


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
