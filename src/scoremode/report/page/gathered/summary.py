"""What the report needs of one run: read, verified, reduced to little; its Scores are then let go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.report.page.gathered.binned import Binned, binned_means, histogram
from scoremode.results.folders.finished import FinishedRun, open_whole
from scoremode.results.folders.tables import TOKEN_TEXT
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.bootstrap import Metric
from scoremode.results.statistics.means import Blocks, Mean, estimates
from scoremode.results.statistics.places import Places
from scoremode.results.statistics.tail import band, curve, percentile_intervals

__all__ = ["PERCENTILES", "Compared", "Place", "Summary", "TailPoints", "Units", "summarized"]

# Percent → the field of Run.
PERCENTILES = {50.0: "kld_median", 90.0: "kld_p90", 99.0: "kld_p99", 99.9: "kld_p999"}
_BAND_POINTS = 25

Floats = NDArray[np.float64]
# A window, and a position in it.
Place = tuple[int, int]


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
    """Of a run against a base.

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
    length = run.at("intervals.block_length")
    blocks = run.places.blocks(length, run.weights)
    compared = None
    if scores.against is not None:
        rows = _rows(scores, places)
        compared = Compared(
            _metrics(run, scores, scores.against, blocks),
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
    tokens = run.places.shortest(run.at("protocol.context_length"))
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


def _metrics(
    run: FinishedRun, scores: Scores, against: Comparison, blocks: Blocks
) -> dict[str, Metric]:
    kept = run.at("distribution.kld")
    values = {percent: kept[f"{percent:g}"] for percent in PERCENTILES}
    found = percentile_intervals(against.kld, values, blocks)
    own, theirs = scores.top1 == scores.target, against.base_top1 == scores.target
    means = {"lost": blocks.mean(theirs & ~own), "gained": blocks.mean(own & ~theirs)}
    shares = estimates({name: mean for name, mean in means.items() if mean}, blocks.length)
    return {PERCENTILES[percent]: metric for percent, metric in found.items()} | shares


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
