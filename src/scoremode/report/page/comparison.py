"""Runs of a section set against each other, by the same blocks of the text.

- `matrices`: every pair of runs, tested.
- `frontiers`: size against quality, and which runs no other one beats.
- `attributions`: which part of a run's model does the damage.
- `side_by_side`: the targets that any run predicts most unlike the base, as all of them see it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from scoremode.report.page.charts import measured, rounded
from scoremode.report.page.definition import (
    Attribution,
    Axis,
    Base,
    Difference,
    Frontier,
    Matrix,
    Measured,
    Point,
    Run,
    Standing,
    Word,
    WorstTarget,
)
from scoremode.report.page.summary import Compared, Place, Summary, Units
from scoremode.results.attribution import read_attribution
from scoremode.results.comparison.ranking import beaten_by
from scoremode.results.record.definition import Record
from scoremode.results.record.outcome import WorstTarget as Worst
from scoremode.results.record.section import Metric, decode
from scoremode.results.statistics.blocks import BlockLength, Places
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, WHOLE, too_few
from scoremode.results.statistics.means import estimates
from scoremode.results.statistics.pairs import Pair, pairs

Floats = NDArray[np.float64]

_SIZES = {
    "bytes": ("size of the model's files", "bytes"),
    "bits_body": ("bits per quantized weight", "bits"),
    "bits_file": ("bits per weight, of all bytes", "bits"),
}
# a, b → verdict on a.
Tests = Mapping[tuple[str, str], str]
# Of all runs together, and of one at least.
_MOST, _LEAST = 40, 3
# Attributions of one run, the finest first: of several the first one is shown.
_BY = ("module", "layer", "kind")
_REST = "all of it"


@dataclass(frozen=True)
class FrontierKind:
    """Size against a quality of the runs, the key of a metric in FRONTIERS.

    - `title`, `caption`: of the figure. `label`, `unit`: of the quality; `axis`: both, as it is drawn.
    - `own`: the base's own value; None in a section without a base.
    - `tested`: the matrix that tests it, None where the intervals have to tell.
    """

    title: str
    caption: str
    label: str
    unit: str
    axis: str
    own: float | None
    tested: Literal["kld", "nll"] | None


FRONTIERS = {
    "kld": FrontierKind(
        "Size and distance from the base",
        "Lower and further left is better. The dashed steps are the frontier: nothing measured here is "
        "both smaller and closer to the base. Bars are 95 % intervals.",
        "mean KLD", "nats", "mean KLD (nats)", 0.0, "kld",
    ),
    "ppl_ratio": FrontierKind(
        "Size and perplexity",
        "How much more surprising the text became. An interval that holds 1 leaves open whether "
        "anything was lost. The scale is linear near 1, logarithmic further off.",
        "PPL / base", "", "PPL / base", 1.0, "nll",
    ),
    "kld_p999": FrontierKind(
        "Size and the worst token in a thousand",
        "One token in a thousand is further off than this. Quants of one mean may differ here.",
        "KLD that 1 target in 1,000 exceeds", "nats", "99.9 % KLD (nats)", 0.0, None,
    ),
    "ppl": FrontierKind(
        "Size and perplexity", "Lower and further left is better.", "PPL", "", "PPL", None, "nll"
    ),
}  # fmt: skip


class Cut:
    """A section's text cut into blocks, one way for all its runs.

    - `chosen`: the blocks' length, and why. `weights`: float64 [blocks], of those that weigh anything.
    """

    def __init__(self, chosen: BlockLength, units: Units):
        self.chosen = chosen
        block = np.arange(len(units.weights)) // (chosen.tokens // units.tokens)
        self._block = block
        weights = np.bincount(block, weights=units.weights).astype(np.float64)
        self._filled = weights > 0
        self.weights = weights[self._filled]

    def sums(self, of_units: Floats) -> Floats:
        """Sums over blocks, of sums over units."""
        summed = np.bincount(self._block, weights=of_units).astype(np.float64)
        return summed[self._filled]

    def metrics(self, units: Units) -> dict[str, Metric]:
        """The metrics of a run's `means`, with intervals from these blocks."""
        filled = self._block[units.weights > 0]
        means = {
            name: replace(
                mean,
                sums=np.bincount(filled, mean.sums, len(self._filled))[self._filled],
                totals=self.weights,
            )
            for name, mean in units.means.items()
        }
        return estimates(means, self.chosen.tokens)


def cut(ordered: Sequence[Summary]) -> Cut:
    """Blocks for all of a section's runs, which are in the order of their rank.

    Their length is what any run, or any two neighbours' difference, asks for, as for `compare`.
    """
    columns: dict[str, Floats] = {}
    all_units = [summary.units for summary in ordered]
    for i, units in enumerate(all_units):
        columns[f"nll {i}"] = units.nll
        if units.kld is not None:
            columns[f"kld {i}"] = units.kld
    for i, (a, b) in enumerate(pairwise(all_units)):
        columns[f"nll {i} - {i + 1}"] = a.nll - b.nll
        if a.kld is not None and b.kld is not None:
            columns[f"kld {i} - {i + 1}"] = a.kld - b.kld
    first = all_units[0]
    filled = np.flatnonzero(first.weights > 0)
    weights = first.weights[filled]
    # A unit stands for its evaluations, by its first place in the stream; the last one by the last.
    index = filled * first.tokens
    index[-1] = first.last
    means = {name: sums[filled] / weights for name, sums in columns.items()}
    places = Places(index, index if first.are_conversations else None)
    return Cut(places.chosen(means, first.tokens, weights), first)


def matrices(ordered: Mapping[str, Summary], blocks: Cut) -> list[Matrix]:
    """KLD where runs have one, and nll, of runs by their ids, best first."""
    found = []
    by_kld = {id_: s.units.kld for id_, s in ordered.items() if s.units.kld is not None}
    by_nll = {id_: s.units.nll for id_, s in ordered.items()}
    if len(by_kld) > 1:
        found.append(_matrix("kld", by_kld, blocks))
    if len(by_nll) > 1:
        found.append(_matrix("nll", by_nll, blocks))
    return found


def _matrix(of: Literal["kld", "nll"], units: Mapping[str, Floats], blocks: Cut) -> Matrix:
    ids = list(units)
    sums = np.stack([blocks.sums(of_run) for of_run in units.values()])
    few, whole = len(blocks.weights) < MIN_BLOCKS, blocks.chosen.tokens == WHOLE
    return {
        "of": of,
        "unit": "nats",
        "order": ids,
        "pairs": [_difference(of, pair, ids) for pair in pairs(sums, blocks.weights, whole=whole)],
        "note": too_few(len(blocks.weights), blocks.chosen.tokens) if few else None,
    }


def _difference(of: str, pair: Pair, ids: Sequence[str]) -> Difference:
    lower, upper = pair.ci95 or (None, None)
    with np.errstate(over="ignore"):
        ratio = float(np.exp(pair.value))
    return {
        "a": ids[pair.a],
        "b": ids[pair.b],
        "value": pair.value,
        "lower": lower,
        "upper": upper,
        "ratio": ratio if of == "nll" and np.isfinite(ratio) else None,
        "p": pair.p,
        "p_holm": pair.p_holm,
        "verdict": pair.verdict,
    }


def frontiers(runs: Sequence[Run], base: Base | None, matrices: Sequence[Matrix]) -> list[Frontier]:
    """A chart for each size and each quality that any run has."""
    tests: dict[str, dict[tuple[str, str], str]] = {}
    for matrix in matrices:
        known = tests.setdefault(matrix["of"], {})
        for pair in matrix["pairs"]:
            other = {"lower": "higher", "higher": "lower"}
            known[pair["a"], pair["b"]] = pair["verdict"]
            known[pair["b"], pair["a"]] = other.get(pair["verdict"], pair["verdict"])
    qualities = [key for key, kind in FRONTIERS.items() if (kind.own is not None) == bool(base)]
    found = []
    for quality in qualities:
        for size in _SIZES:
            compared = [run for run in runs if not run["is_base"]]
            both = [run for run in compared if run[size] is not None and run[quality] is not None]
            if both:
                tested = FRONTIERS[quality].tested
                known = tests.get(tested, {}) if tested else _by_intervals(both, quality)
                found.append(_frontier(both, base, size, quality, known))
    return found


def _frontier(
    runs: Sequence[Run], base: Base | None, size: str, quality: str, tests: Tests
) -> Frontier:
    values: dict[str, tuple[float, float]] = {
        run["id"]: (run[size], run[quality]["value"]) for run in runs
    }
    points = [_point(run, quality, values, tests) for run in runs]
    points.sort(key=lambda point: (point["x"], point["y"]))
    kind = FRONTIERS[quality]
    own = kind.own
    at = base[size] if base else None
    # Divergences span decades; 0, which is the base's own, has no place on such an axis.
    is_log = own == 0 and all(point["y"] > 0 for point in points)
    return {
        "id": f"{size}/{quality}",
        "x": _axis(*_SIZES[size]),
        "y": _axis(kind.label, kind.unit, "log" if is_log else "linear"),
        "points": points,
        "line": [point["run"] for point in points if point["standing"] == "frontier"],
        "base": None if at is None or own is None else (at, own),
        "tested": kind.tested,
    }


def _point(
    run: Run, quality: str, values: Mapping[str, tuple[float, float]], tests: Tests
) -> Point:
    own = run["id"]
    x, y = values[own]
    smaller = sorted((other for other in values if other != own and values[other][0] <= x),
                     key=lambda other: values[other])  # fmt: skip
    by = sorted(beaten_by(values, own), key=lambda other: values[other])
    verdicts = {other: tests.get((own, other), "not known") for other in smaller}
    standing: Standing = "frontier"
    if by:
        told = {verdicts[other] for other in by}
        if "higher" in told:
            standing = "beaten"
        else:
            standing = "not distinguishable" if "not distinguishable" in told else "not known"
    known = all(verdict != "not known" for verdict in verdicts.values())
    measured: Any = run[quality]
    return {
        "run": own,
        "x": x,
        "y": y,
        "lower": measured["lower"],
        "upper": measured["upper"],
        "standing": standing,
        "by": by,
        "same_as": [o for o in smaller if verdicts[o] == "not distinguishable"] if known else None,
    }


def _by_intervals(runs: Sequence[Run], quality: str) -> Tests:
    """Verdicts on values without a paired test: told apart where their intervals don't meet."""
    found = {}
    for a in runs:
        for b in runs:
            one: Any = a[quality]
            other: Any = b[quality]
            if one["lower"] is None or other["lower"] is None:
                verdict = "not known"
            elif one["upper"] < other["lower"]:
                verdict = "lower"
            else:
                verdict = "higher" if one["lower"] > other["upper"] else "not distinguishable"
            found[a["id"], b["id"]] = verdict
    return found


def _axis(label: str, unit: str, scale: Literal["linear", "log"] = "linear") -> Axis:
    return {"label": label, "unit": unit, "scale": scale, "least": None, "most": None}


def worst_places(records: Sequence[Record]) -> list[Place]:
    """Windows and positions of the worst targets of the records, a few of each.

    A place of the text that several runs get wrong is taken once, as that of the largest KLD.
    """
    lists = [record.worst for record in records if record.worst]
    count = max(_LEAST, _MOST // max(1, len(lists)))
    by_index: dict[int, Worst] = {}
    for worst in lists:
        for target in worst[:count]:
            known = by_index.get(target.index)
            if known is None or target.kld > known.kld:
                by_index[target.index] = target
    return sorted((target.window, target.position) for target in by_index.values())


def side_by_side(
    places: Sequence[Place],
    compared: Mapping[str, Compared],
    records: Mapping[str, Record],
    texts: Mapping[int, str],
) -> list[WorstTarget]:
    """The predictions of the base and of the runs (by id) at `places`, the largest KLD of any run
    first.

    - `texts`: of token ids, for those that no record has a text of.
    """
    worst = {run: record.worst or [] for run, record in records.items()}
    told = [target for of_run in worst.values() for target in of_run]
    contexts = {(t.window, t.position): t.context for t in told if t.context is not UNSET}
    own: dict[int, str] = {}
    for target in told:
        for name in ("target", "base_top1", "top1"):
            if (text := getattr(target, f"{name}_text")) is not UNSET:
                own.setdefault(getattr(target, name), text)
    found = []
    for place in places:
        at = {run: of.at[place] for run, of in compared.items() if place in of.at}
        if at:
            index = next(iter(at.values()))["index"]
            worst_of = [run for run in at if any(t.index == index for t in worst[run])]
            found.append(_target(place, at, worst_of, contexts.get(place), {**texts, **own}))
    return sorted(found, key=lambda target: (-max(target["kld"]), target["index"]))


def _target(
    place: Place,
    at: Mapping[str, Mapping[str, Any]],
    worst_of: list[str],
    context: str | None,
    texts: Mapping[int, str],
) -> WorstTarget:
    def word(token: int) -> Word:
        return {"id": token, "text": texts.get(token)}

    # All are against one base: any of them tells of it.
    first = next(iter(at.values()))
    return {
        "window": place[0],
        "position": place[1],
        "index": first["index"],
        "context": context,
        "target": word(first["target"]),
        "base_p": rounded(first["base_p"]),
        "base_top1": word(first["base_top1"]),
        "base_top1_p": rounded(first["base_top1_p"]),
        "worst_of": worst_of,
        "runs": list(at),
        "p": [rounded(of["p"]) for of in at.values()],
        "top1": [word(of["top1"]) for of in at.values()],
        "top1_p": [rounded(of["top1_p"]) for of in at.values()],
        "kld": [rounded(of["kld"]) for of in at.values()],
    }


def attributions(folders: Mapping[str, Path]) -> list[Attribution]:
    """A heat map of each run that was attributed, by its id. Raises RunFolderError for one that is not
    as it was written."""
    found = []
    for run, folder in folders.items():
        paths = (folder / f"attribution-{by}.json" for by in _BY)
        path = next((path for path in paths if os.path.lexists(path)), None)
        if path is not None:
            found.append(_map(run, read_attribution(path)))
    return found


def _map(run: str, value: Mapping[str, Any]) -> Attribution:
    """Rows of layers and columns of kinds; of what lies in no layer a row by itself."""
    rows: dict[str, dict[str, Measured | None]] = {}
    heads: dict[str, None] = {}
    for unit in value["units"]:
        if value["by"] == "kind":
            row, head = "all layers", unit["name"]
        elif value["by"] == "layer" or unit["layer"] is None:
            row, head = unit["name"], _REST
        else:
            row, head = f"layer {unit['layer']}", unit["name"].rpartition(".")[2]
        heads[head] = None
        rows.setdefault(row, {})[head] = measured(decode(unit["alone"], Metric))
    return {
        "run": run,
        "by": value["by"],
        "heads": list(heads),
        "rows": [
            {"name": name, "cells": [cells.get(head) for head in heads]}
            for name, cells in rows.items()
        ],
        "whole": measured(decode(value["kld"], Metric)),
        "sum_share": value["additivity"]["alone"]["share"],
        "unfit": value["unfit"],
    }
