"""One run reduced to what the report needs: it is read, verified and summed up, and its Scores
are let go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.report.page.charts import TailPoints, reductions, tail_points
from scoremode.results.folders.finished import FinishedRun, open_whole
from scoremode.results.folders.tables import TOKEN_TEXT
from scoremode.results.record.section import Metric
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.means import Blocks, Mean, percentile_intervals

# Percent → the field of Run.
PERCENTILES = {50.0: "kld_median", 90.0: "kld_p90", 99.0: "kld_p99", 99.9: "kld_p999"}
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
class Compared:
    """The reduction of a run against a base.

    - `metrics`: the fields of Run that the record hasn't. `charts`: what the charts need, by their ids.
      `at`: place → what `WorstTarget` needs of it.
    """

    metrics: dict[str, Metric]
    tail: TailPoints
    charts: dict[str, Any]
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
            tail_points(scores.against.kld, blocks),
            reductions(scores, scores.against, blocks),
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
