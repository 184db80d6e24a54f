"""One run reduced to what the report needs: it is read, verified, summed up and binned, and its Scores
are let go.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.report.page.definition import Measured
from scoremode.results.folders.finished import FinishedRun, open_whole
from scoremode.results.folders.tables import TOKEN_TEXT
from scoremode.results.record.section import Metric
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.means import (
    FLOOR,
    Blocks,
    Mean,
    band,
    curve,
    estimates,
    percentile_intervals,
)

_CONFIDENCES = tuple(i / 10 for i in range(11))
_PROBABILITIES = (0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_POSITIONS = 24
# Four bins a decade, from FLOOR to more than any KLD of a softmax over float32.
_DECADE, _DECADES = 4, 12
# Percent → the field of Run.
PERCENTILES = {50.0: "kld_median", 90.0: "kld_p90", 99.0: "kld_p99", 99.9: "kld_p999"}
_BAND_POINTS = 25
Floats = NDArray[np.float64]
# A window, and a position in it.
Place = tuple[int, int]


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


@dataclass(frozen=True)
class BinnedKind:
    """A chart of the mean KLD in bins of a quantity.

    - `title`, `words`: of the chart. `label`: of the quantity, on the axis.
    - `column`: [N], the quantity of each target; `edges`: of the bins, rising.
    - `unequal`: whether the bins are so unequal in width that they stand side by side as categories.
    - `whole`: whether the quantity is a whole number.
    """

    title: str
    words: str
    label: str
    column: Callable[[Scores, Comparison], NDArray]
    edges: Callable[[Scores], Sequence[float]]
    unequal: bool = False
    whole: bool = False


def _position_edges(scores: Scores) -> list[float]:
    first, last = int(scores.position.min()), int(scores.position.max()) + 1
    width = math.ceil((last - first) / _POSITIONS)
    return [float(edge) for edge in (*range(first, last, width), last)]


BINNED = {
    "confidence": BinnedKind(
        "KLD by the base's confidence",
        "Mean KLD of the targets where the base gives its likeliest token that probability. Where the "
        "base is sure, a large KLD changes what is written.",
        "base's probability of its likeliest token",
        lambda scores, against: np.exp(against.base_top1_logprob),
        lambda scores: _CONFIDENCES,
    ),
    "target_probability": BinnedKind(
        "KLD by the target's probability",
        "Mean KLD of the targets that the base finds that likely.",
        "base's probability of the target",
        lambda scores, against: np.exp(against.base_logprob),
        lambda scores: _PROBABILITIES,
        unequal=True,
    ),
    "position": BinnedKind(
        "KLD by position in the window",
        "Mean KLD of the targets with so many tokens before them. Quantized keys and values, or "
        "positions out of range, show as a rise to the right.",
        "position in the window",
        lambda scores, against: scores.position,
        _position_edges,
        whole=True,
    ),
}


def binned_means(scores: Scores, against: Comparison, blocks: Blocks) -> dict[str, Binned]:
    """Mean KLD in the bins of every chart in BINNED."""
    return {
        name: _by_bin(kind.column(scores, against), kind.edges(scores), against.kld, blocks)
        for name, kind in BINNED.items()
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


def drawn(value: float | None) -> float | None:
    """A number of a chart: to 7 significant digits, None where it is none or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return rounded(value)


def rounded(value: float) -> float:
    """A number that is known to be finite, to 7 significant digits."""
    return float(f"{value:.7g}")


def measured(metric: Metric) -> Measured:
    """A metric in full."""
    lower, upper = metric.ci95 or (None, None)
    return {
        "value": metric.value,
        "lower": lower,
        "upper": upper,
        "n": metric.n,
        "note": metric.note,
    }


@dataclass(frozen=True, eq=False)
class Units:
    """Sums over stretches of the text, each as long as a window, or over conversations, of which blocks
    are made.

    - `weights`, `nll`, `kld`: float64 [units], what the evaluations in each weigh, and weighted sums;
      `kld` None without a base. `tokens`: the length of a unit, of conversations 1. `last`: the last
      place in the stream.
    - `means`: the metrics that all runs of a section have from the same blocks, over the units that
      weigh anything.
    """

    are_conversations: bool
    tokens: int
    last: int
    weights: Floats
    nll: Floats
    kld: Floats | None
    means: Mapping[str, Mean]


@dataclass(frozen=True, eq=False)
class TailPoints:
    """Points of the curve x → targets of at least that KLD, `count` of `of`; `error` in decades; and
    the interval of the share at some of them, by their number."""

    x: Floats
    count: NDArray[np.int64]
    of: int
    error: float
    band: dict[int, Metric]


@dataclass(frozen=True, eq=False)
class Compared:
    """The reduction of a run against a base.

    - `metrics`: the fields of Run that the record hasn't. `tail`, `histogram`, and the means of KLD in
      bins, by the chart's id. `at`: place → what `WorstTarget` needs of it.
    """

    metrics: dict[str, Metric]
    tail: TailPoints
    histogram: Binned
    binned: dict[str, Binned]
    at: dict[Place, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Summary:
    """`run` is without its arrays. `texts`: of some token ids, where the Scores have them."""

    run: FinishedRun
    units: Units
    compared: Compared | None
    texts: dict[int, str]


def summarized(folder: Path, places: Sequence[Place]) -> Summary:
    """Reads the finished run in `folder`; `places`: targets that are asked for one by one.

    Raises RunFolderError.
    """
    run, scores, extras = open_whole(folder)
    # Made of the scores, as every section of a run that was read.
    assert run.record.intervals
    blocks = run.places.blocks(run.record.intervals.block_length, run.weights)
    compared = None
    if scores.against is not None:
        rows = _rows(scores, places)
        compared = Compared(
            _metrics(run, scores.against, blocks),
            _tail(scores.against.kld, blocks),
            histogram(scores.against.kld, blocks),
            binned_means(scores, scores.against, blocks),
            {place: _at(scores, scores.against, row) for place, row in rows.items()},
        )
    nothing = np.empty(0)
    return Summary(
        replace(
            run,
            nll=nothing,
            kld=None if run.kld is None else nothing,
            base_nll=None,
            same_top1=None,
            places=Places(np.empty(0, np.int32)),
            weights=None,
        ),
        _units(run),
        compared,
        _texts(scores, extras, compared),
    )


def _units(run: FinishedRun) -> Units:
    tokens = run.places.shortest(run.record.protocol.context_length)
    unit = run.places.numbered.astype(np.int64) // tokens
    weight = np.ones(len(unit)) if run.weights is None else run.weights

    def sums(values: Floats) -> Floats:
        return np.bincount(unit, weights=values * weight).astype(np.float64)

    return Units(
        run.places.conversation is not None,
        tokens,
        int(run.places.numbered.max()),
        np.bincount(unit, weights=weight).astype(np.float64),
        sums(run.nll),
        None if run.kld is None else sums(run.kld),
        run.means(run.places.blocks(tokens, run.weights)),
    )


def _metrics(run: FinishedRun, against: Comparison, blocks: Blocks) -> dict[str, Metric]:
    assert run.record.distribution
    kept = run.record.distribution["kld"]
    values = {percent: kept[f"{percent:g}"] for percent in PERCENTILES}
    found = percentile_intervals(against.kld, values, blocks)
    return {PERCENTILES[percent]: metric for percent, metric in found.items()}


def _tail(kld: Floats, blocks: Blocks) -> TailPoints:
    x, count, error = curve(kld)
    # The corners of the band, both ends among them.
    at = np.unique(np.linspace(0, len(x) - 1, min(_BAND_POINTS, len(x))).astype(int)).tolist()
    found = band(kld, [float(x[i]) for i in at], blocks)
    return TailPoints(x, count, len(kld), error, dict(zip(at, found, strict=True)))


def _rows(scores: Scores, places: Sequence[Place]) -> dict[Place, int]:
    """Rows of the Scores by window and position, of those that are there."""
    order = scores.window.astype(np.int64) << 32 | scores.position
    keys = np.array([w << 32 | p for w, p in places], np.int64)
    rows = np.minimum(np.searchsorted(order, keys), len(order) - 1)
    there = order[rows] == keys
    return {
        place: int(row)
        for place, row, is_there in zip(places, rows, there, strict=True)
        if is_there
    }


def _at(scores: Scores, against: Comparison, row: int) -> dict[str, Any]:
    return {
        "index": int(scores.index[row]),
        "target": int(scores.target[row]),
        "base_p": float(np.exp(against.base_logprob[row])),
        "base_top1": int(against.base_top1[row]),
        "base_top1_p": float(np.exp(against.base_top1_logprob[row])),
        "p": float(np.exp(scores.logprob[row])),
        "top1": int(scores.top1[row]),
        "top1_p": float(np.exp(scores.top1_logprob[row])),
        "kld": float(against.kld[row]),
    }


def _texts(
    scores: Scores, extras: Mapping[str, np.ndarray], compared: Compared | None
) -> dict[int, str]:
    """Texts of the ids at the places that were asked for, where the run kept its targets' texts."""
    if compared is None or TOKEN_TEXT not in extras:
        return {}
    wanted = {at[name] for at in compared.at.values() for name in ("target", "base_top1", "top1")}
    ids, first = np.unique(scores.target, return_index=True)
    texts = extras[TOKEN_TEXT][first]
    return {int(i): str(text) for i, text in zip(ids, texts, strict=True) if int(i) in wanted}
