"""KLD in bins: of itself, of the base's confidence, of the target's probability, of the position."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.bootstrap import Metric
from scoremode.results.statistics.means import Blocks, Mean, estimates
from scoremode.results.statistics.tail import FLOOR

__all__ = ["Binned", "binned_means", "histogram"]

_CONFIDENCES = tuple(i / 10 for i in range(11))
_PROBABILITIES = (0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_POSITIONS = 24
# Four bins a decade, from FLOOR to more than any KLD of a softmax over float32.
_DECADE, _DECADES = 4, 12

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Binned:
    """Bins of some quantity between `edges` (one more than bins), and a metric of the targets in each,
    None where there are none; `n`: how many, of `of` in all.

    An edge belongs to the bin above it, the last one to the last bin.
    """

    edges: tuple[float, ...]
    metrics: list[Metric | None]
    n: list[int]
    of: int


def histogram(kld: Floats, blocks: Blocks) -> Binned:
    """Shares of targets by log10 of their KLD: in the first bin all below FLOOR, in the last all that
    are beyond it. Each target counts as one."""
    lowest = math.log10(FLOOR)
    steps = [lowest + i / _DECADE for i in range(_DECADES * _DECADE + 1)]
    place = np.digitize(np.log10(np.maximum(kld, FLOOR / 10)), steps)
    once, n = Blocks.same(blocks), np.bincount(place, minlength=len(steps) + 1).tolist()
    means: dict[int, Mean] = {}
    for i in np.flatnonzero(n).tolist():
        mean = once.mean(place == i)
        assert mean is not None
        means[i] = mean
    found = estimates(means, blocks.length)
    none = Metric(0.0, None, 0, "no target")
    return Binned(
        (-math.inf, *steps, math.inf), [found.get(i, none) for i in range(len(n))], n, len(kld)
    )


def binned_means(scores: Scores, against: Comparison, blocks: Blocks) -> dict[str, Binned]:
    """Mean KLD by the base's probability of its likeliest token (`confidence`) and of the target
    (`target_probability`), and by the position in the window (`position`)."""
    first, last = int(scores.position.min()), int(scores.position.max()) + 1
    width = math.ceil((last - first) / _POSITIONS)
    positions = [*range(first, last, width), last]
    columns = {
        "confidence": (np.exp(against.base_top1_logprob), _CONFIDENCES),
        "target_probability": (np.exp(against.base_logprob), _PROBABILITIES),
        "position": (scores.position, [float(edge) for edge in positions]),
    }
    return {
        name: _by_bin(column, edges, against.kld, blocks)
        for name, (column, edges) in columns.items()
    }


def _by_bin(column: NDArray, edges: Sequence[float], values: Floats, blocks: Blocks) -> Binned:
    # What rounding leaves above 1, and 1 itself, are of the last bin.
    group = np.digitize(column, edges[1:-1])
    bins = len(edges) - 1
    means = blocks.means_by(group, bins, {"": values})
    found = estimates({i: m[""] for i, m in enumerate(means) if m}, blocks.length)
    n = np.bincount(group, minlength=bins).tolist()
    assert len(list(pairwise(edges))) == bins
    return Binned(tuple(edges), [found.get(i) for i in range(bins)], n, len(values))
