"""Tests of runs of the same targets in pairs, and of two models' answers to the same questions.

All runs are resampled by the same blocks of text, so that a pair's difference in a resample is the
difference of two means: what makes a stretch of text hard cancels, and any number of pairs costs one
resampling. A p-value is what the percentile interval says the other way around: the smallest share
outside at which the interval, taken further out for few blocks as everywhere here, holds 0. Where
hardly a resample lies beyond 0, the distance in standard deviations of the resamples tells, as a
normal distribution's: 190 pairs ask for p-values that 10,000 resamples can't count.

p-values are corrected by Holm ("A simple sequentially rejective multiple test procedure", Scandinavian
Journal of Statistics 6, 1979): that any pair at all is wrongly told apart has a chance of 5 % at most.

Of answers, an accuracy that stays the same may hide as many questions lost as gained (Dutta et al.,
"Accuracy is not all you need", arXiv 2407.09141), so both are counted. Whether one side outweighs the
other is McNemar's question, answered exactly: of the questions that flipped, each way is as likely as
the other if the models are equally good.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.results.statistics.bootstrap import (
    FURTHEST,
    MIN_BLOCKS,
    block_bootstrap,
    clusters,
    percentile_interval,
    resampled,
)

LEVEL = 0.05
# With fewer resamples beyond 0, their number tells too little.
_COUNTED = 10

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Run `a` less run `b` (their places): the mean difference, its own 95 % interval, its p-value
    and that corrected by Holm; None where there are too few blocks."""

    a: int
    b: int
    value: float
    ci95: tuple[float, float] | None
    p: float | None
    p_holm: float | None

    @property
    def verdict(self) -> Literal["lower", "higher", "not distinguishable", "not known"]:
        """`lower`, `higher`, `not distinguishable`, or `not known` without a test."""
        if self.p_holm is None:
            return "not known"
        if self.p_holm >= LEVEL:
            return "not distinguishable"
        return "lower" if self.value < 0 else "higher"


def pairs(sums: Floats, totals: Floats, *, whole: bool = False) -> list[Pair]:
    """All pairs a < b of the runs, whose means are Σ sums / Σ totals.

    `sums`: float64 [runs, blocks]. `totals`: float64 [blocks], all above 0. `whole`: blocks are whole
    conversations, pages or questions, so that the studentized test must tell two apart as well
    (`bootstrap.Clusters`). Seeded.
    """
    runs, blocks = sums.shape
    means = sums.sum(1) / totals.sum()
    places = [(a, b) for a in range(runs) for b in range(a + 1, runs)]
    values = [float(means[a] - means[b]) for a, b in places]
    if blocks < MIN_BLOCKS:
        return [Pair(a, b, d, None, None, None) for (a, b), d in zip(places, values, strict=True)]
    tested = _of_clusters(sums, totals) if whole else _of_blocks(sums, totals)
    corrected = holm([p for _, p in tested])
    return [
        Pair(a, b, value, ends, p, of_all)
        for (a, b), value, (ends, p), of_all in zip(places, values, tested, corrected, strict=True)
    ]


def ranks(count: int, told: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first and last rank that each of `count` runs may have, 1 for the best.

    `told`: pairs that are told apart, the better first. Where these are corrected for how many there
    are, in 95 % of texts all true ranks lie within these.
    """
    first, last = [1] * count, [count] * count
    for better, worse in told:
        first[worse] += 1
        last[better] -= 1
    return list(zip(first, last, strict=True))


def _of_blocks(sums: Floats, totals: Floats) -> list[tuple[tuple[float, float], float]]:
    """Interval and p-value of each pair."""
    runs, blocks = sums.shape
    # A run after the other in memory, as they are read.
    drawn = np.ascontiguousarray(resampled(sums, np.broadcast_to(totals, sums.shape)).T)
    found: list[tuple[tuple[float, float], float]] = []
    for a in range(runs - 1):
        differences = drawn[a] - drawn[a + 1 :]
        differences.sort(1)
        ends = zip(*percentile_interval(differences.T, blocks).tolist(), strict=True)
        p_values = [_p_value(of_pair, blocks) for of_pair in differences]
        found += zip(ends, p_values, strict=True)
    return found


def _of_clusters(sums: Floats, totals: Floats) -> list[tuple[tuple[float, float], float]]:
    """Interval and p-value of each pair, where both tests must tell it apart, as both make an
    interval."""
    first, second = np.triu_indices(len(sums), 1)
    differences = sums[first] - sums[second]
    drawn = clusters(differences, np.broadcast_to(totals, differences.shape))
    found: list[tuple[tuple[float, float], float]] = []
    for i, (low, high) in enumerate(drawn.ends.T.tolist()):
        p = _p_value(drawn.value[i] + drawn.away[:, i], drawn.blocks)
        if (error := float(drawn.error[i])) > 0:
            t = float(drawn.value[i]) / error
            p = max(p, _studentized_p_value(t, drawn.t[:, i], drawn.blocks))
        found.append(((low, high), p))
    return found


def _studentized_p_value(t: float, drawn: Floats, blocks: int) -> float:
    """Two-sided, of "no difference", from a pair's `t` and those of its resamples."""
    outside = min(int((drawn >= t).sum()), int((drawn <= t).sum()))
    p = 2 * outside / len(drawn)
    if outside < _COUNTED:
        p = 2 * student_cdf(-abs(t), blocks - 1)
    # An interval has no end further than that.
    return min(1.0, p, 2 * student_cdf(-abs(t) / FURTHEST, blocks - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are, in their order."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for tried, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - tried) * p_values[i]))
        corrected[i] = largest
    return corrected


def _p_value(differences: Floats, blocks: int) -> float:
    """Two-sided, of "no difference", from a pair's resampled differences."""
    outside = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    if outside >= len(differences) / 2:
        return 1.0
    if outside >= _COUNTED:
        z = NormalDist().inv_cdf(outside / len(differences))
    elif (deviation := float(differences.std())) > 0:
        z = -abs(float(differences.mean())) / deviation
    else:
        return 0.0
    return min(1.0, 2 * student_cdf(z * math.sqrt((blocks - 1) / blocks), blocks - 1))


def student_cdf(t: float, freedom: int) -> float:
    """The distribution function of Student's t with that many degrees of freedom, for t ≤ 0.

    ½ I_x(v/2, ½) at x = v/(v + t²), by the continued fraction of the incomplete beta function
    (Abramowitz and Stegun 26.5.8, 26.7.1).
    """
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    if x > (a + 1) / (a + b + 2):
        return 0.5 - 0.5 * _incomplete_beta(b, a, 1 - x)
    return 0.5 * _incomplete_beta(a, b, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) where x ≤ (a + 1)/(a + b + 2): there the fraction converges fast."""
    if x <= 0:
        return 0.0
    log_front = a * math.log(x) + b * math.log1p(-x)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # From the back: 1 + d₁/(1 + d₂/(1 + …)), of which 200 terms are far more than it needs.
    tail = 1.0
    for m in range(200, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        tail = 1 + even / tail
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        tail = 1 + odd / tail
    return math.exp(log_front) / (a * tail)


def mcnemar(lost: int, gained: int) -> float:
    """The exact two-sided p-value of so many flips either way, 1 for none: twice the binomial tail, at
    most 1."""
    n, fewer = lost + gained, min(lost, gained)
    # Whole numbers, of which Python's division rounds once, however long they are.
    tail = term = 1
    for k in range(fewer):
        term = term * (n - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def paired_answers(own: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, Any]:
    """The comparison of two models by a metric of the same questions.

    `own`, `base`: float64 [N], the metric of each question. `difference` is the mean of own − base with
    its 95 % interval, from a bootstrap of whole questions. Of right and wrong answers, 1 and 0, also
    how many were `lost` and `gained`, and McNemar's exact `p`.
    """
    change = own - base
    interval = block_bootstrap(change, np.ones_like(change))
    note = None if interval else f"{len(change)} questions: an interval needs at least {MIN_BLOCKS}"
    found: dict[str, Any] = {
        "difference": {
            "value": float(change.mean()),
            "ci95": None if interval is None else list(interval),
            "n": len(change),
            "note": note,
        }
    }
    if np.isin(np.concatenate([own, base]), (0.0, 1.0)).all():
        lost, gained = int((change < 0).sum()), int((change > 0).sum())
        found |= {"lost": lost, "gained": gained, "p": mcnemar(lost, gained)}
    return found
