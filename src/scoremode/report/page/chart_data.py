"""The data of a section's charts: tails, histograms, KLD by kinds of targets, how long generations stay
the same, heat maps, recipes."""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.report.document import metric_of
from scoremode.report.groups import groups_of
from scoremode.report.page.definition import Attribution, Axis, Bin, Chart, Measured, Series, Tail
from scoremode.report.page.summary import (
    BINNED,
    Binned,
    Compared,
    TailPoints,
    drawn,
    measured,
    rounded,
)
from scoremode.results.attribution import read_attribution
from scoremode.results.folders.store import read_json, seal_of
from scoremode.results.metrics import METRIC, MetricSpec, Shown, shown
from scoremode.results.record.definition import Record
from scoremode.results.record.section import Count, Metric, Section, decode, misfit
from scoremode.results.statistics.means import FLOOR

_WORDS = {
    "group:confidence": (
        "KLD by the base's confidence, in the record's groups",
        "The record's own groups of the base's probability of its likeliest token.",
    ),
    "group:position": (
        "KLD by position, in the record's groups",
        "The record's own groups, each twice as long as the one before.",
    ),
    "group:label": (
        "KLD by group",
        "Mean KLD of each group of the text, as --group-by named them.",
    ),
    "group:label:ppl_ratio": (
        "PPL by group",
        "Each group's PPL over the base's.",
    ),
    "group:label:top1": (
        "Same top-1 by group",
        "Share of each group's targets where model and base find the same token the likeliest.",
    ),
    "group:label:acceptance": (
        "Acceptance by group",
        "Share of each group's tokens, drafted by sampling from the model, that the base accepts.",
    ),
    "group:label:confident_flips": (
        "Confident flips by group",
        "In 10,000 of a group's targets where the base was sure, those where the model finds another "
        "token the likeliest.",
    ),
    "group:turn": (
        "KLD by place in the turn",
        "Mean KLD of an assistant's first token, and further into its turn. A rise at the left is how "
        "an answer begins otherwise; one at the right, how it drifts.",
    ),
    "group:token_class": (
        "KLD by kind of token",
        "Mean KLD by what the target is, by the token alone: a word at the start of a line counts as "
        "inside one.",
    ),
}
_LABELS = {
    "confidence": "base's probability of its likeliest token",
    "position": "position in the window",
    "token_class": "kind of token",
    "label": "group",
    "turn": "place in the assistant's turn, from 1",
}
_SURVIVAL = {
    "greedy": (
        "How long greedy replies stay the same",
        "The base wrote this text greedily. After so many tokens, the share of its replies that the "
        "model, too, would have written token for token.",
    ),
    "by_base": (
        "How long samples stay the same",
        "The base sampled this text. After so many tokens, the share of its samples that the model "
        "draws as well, where both are drawn as alike as can be.",
    ),
    "sampled": (
        "How long samples would stay the same",
        "After so many tokens of this text, the share of samples that agree, if model and base are "
        "drawn as alike as can be. Neither wrote this text; on what they write it may be another.",
    ),
}
# Attributions of one run, the finest first: of several the first one is shown.
_BY = ("module", "layer", "kind")
_REST = "all of it"


def tails(compared: Mapping[str, Compared]) -> list[Tail]:
    """The curve of each run (id → what it is): which share of targets has at least that KLD."""
    return [_tail(run, of.tail) for run, of in compared.items()]


def charts(compared: Mapping[str, Compared], records: Mapping[str, Record]) -> list[Chart]:
    """Every chart but the tail of the runs against one base; `records`: their records, by id."""
    if not compared:
        return []
    found = [_histogram({run: of.histogram for run, of in compared.items()})]
    for name in BINNED:
        found.append(_by_bins(name, {run: of.binned[name] for run, of in compared.items()}))
    others = [metric.key for metric, _ in shown("page groups") if metric.key != "kld"]
    for name in ("label", "turn", "confidence", "position", "token_class"):
        groups = {run: groups_of(records[run]).get(name) or [] for run in compared}
        if not any(groups.values()):
            continue
        if name == "turn":
            found.append(_by_turn(groups))
            continue
        for metric in ["kld", *others] if name == "label" else ["kld"]:
            found.append(_by_groups(name, metric, groups))
    return found


def _tail(run: str, points: TailPoints) -> Tail:
    lower: list[float | None] = [None] * len(points.x)
    upper: list[float | None] = [None] * len(points.x)
    for i, metric in points.band.items():
        if metric.ci95 is not None:
            # A logarithmic axis has no 0.
            lower[i], upper[i] = (drawn(end) if end > 0 else None for end in metric.ci95)
    return {
        "run": run,
        "x": [rounded(x) for x in points.x.tolist()],
        "y": [drawn(count / points.of) for count in points.count],
        "lower": lower,
        "upper": upper,
        "n": points.count.tolist(),
        "error": rounded(points.error),
        "below": points.of - int(points.count[0]) if len(points.count) else points.of,
    }


def _histogram(of: Mapping[str, Binned]) -> Chart:
    """Bins from the first to the last that any run has a target in."""
    edges = next(iter(of.values())).edges
    filled = [i for i in range(len(edges) - 1) if any(run.n[i] for run in of.values())]
    shown = range(filled[0], filled[-1] + 1)
    bins = []
    for i in shown:
        # The first and the last bin have no end; they are drawn as wide as the others.
        low, high = edges[i], edges[i + 1]
        name = f"{10**low:.3g} to {10**high:.3g}"
        if i == 0:
            name, low = f"below {FLOOR:g}", high - (edges[2] - edges[1])
        elif i == len(edges) - 2:
            name, high = f"{10**low:g} and more", low + (edges[2] - edges[1])
        bins.append(_bin(name, low, high, None))
    return {
        "id": "histogram",
        "title": "Distribution of KLD",
        "words": "Share of targets by the size of their KLD, four bins a decade.",
        "kind": "bars",
        "x": _axis("log10 of KLD", "nats"),
        "y": _axis("share of targets", "", least=0.0),
        "bins": bins,
        "series": [
            _series(
                run,
                [((b["lower"] or 0.0) + (b["upper"] or 0.0)) / 2 for b in bins],
                [binned.metrics[i] for i in shown],
                [binned.n[i] for i in shown],
            )
            for run, binned in of.items()
        ],
    }


def _by_bins(name: str, of: Mapping[str, Binned]) -> Chart:
    first, kind = next(iter(of.values())), BINNED[name]
    bins = [
        _bin(_between(low, high, whole=kind.whole), low, high, n / first.of)
        for (low, high), n in zip(pairwise(first.edges), first.n, strict=True)
    ]
    # A position is a whole number: the middle of 1, 2, 3 is 2.
    less = 1 if kind.whole else 0
    x = [
        float(i) if kind.unequal else (first.edges[i] + first.edges[i + 1] - less) / 2
        for i in range(len(bins))
    ]
    return {
        "id": name,
        "title": kind.title,
        "words": kind.words,
        "kind": "line",
        "x": _axis(kind.label, "", "category" if kind.unequal else "linear"),
        "y": _AXES["kld"],
        "bins": bins,
        "series": [_series(run, x, binned.metrics, binned.n) for run, binned in of.items()],
    }


def _by_turn(of: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart:
    """The places in a turn, counted from 1 so that a logarithmic axis has the first."""
    chart = _by_groups("turn", "kld", of)
    ends = {}
    for groups in of.values():
        for group in groups:
            low = group["from"] + 1
            high = 2 * low if group["to"] is None else group["to"] + 1
            ends[group["group"]] = (low, high)
    for one in chart["series"]:
        middle = [
            math.sqrt(low * high) for low, high in (ends[b["name"]] for b in chart["bins"] or ())
        ]
        one["x"] = [rounded(x) for x in middle]
    x = _axis(_LABELS["turn"], "", "log")
    return {**chart, "kind": "line", "x": x}


def _by_groups(name: str, metric: str, of: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart:
    """The record's own groups, side by side."""
    names: dict[str, Mapping[str, Any]] = {}
    for groups in of.values():
        for group in groups:
            names.setdefault(group["group"], group)
    bins = [_bin(g["group"], g.get("from"), g.get("to"), g["share"]) for g in names.values()]
    series = []
    for run, groups in of.items():
        by_name = {group["group"]: group for group in groups}
        found = [by_name.get(group) for group in names]
        x = [float(i) for i in range(len(names))]
        series.append(
            _series(
                run,
                x,
                [metric_of(g and g.get(metric)) for g in found],
                [g[metric]["n"] if g and metric in g else 0 for g in found],
            )
        )
    id_, about = f"group:{name}", METRIC[metric]
    if metric != "kld":
        id_ += f":{metric}"
    title, words = _WORDS.get(id_, (f"{_AXES[metric]['label']} by group", about.words))
    return {
        "id": id_,
        "title": title,
        "words": words,
        "kind": "bars",
        "x": _axis(_LABELS[name], "", "category"),
        "y": _AXES[metric],
        "bins": bins,
        "series": series,
    }


def _series(
    run: str, x: Sequence[float], metrics: Sequence[Metric | None], n: Sequence[int]
) -> Series:
    """`metrics`: None where a bin is empty."""
    ends: list[Any] = [(m.ci95 if m else None) or (None, None) for m in metrics]
    return {
        "run": run,
        "x": [rounded(value) for value in x],
        "y": [None if m is None else drawn(m.value) for m in metrics],
        "lower": [drawn(low) for low, _ in ends],
        "upper": [drawn(high) for _, high in ends],
        "n": list(n),
    }


def _between(low: float, high: float, *, whole: bool) -> str:
    if not whole:
        return f"{low:g} to {high:g}"
    return f"{low:g} to {high - 1:g}" if high - low > 1 else f"{low:g}"


def _bin(name: str, low: float | None, high: float | None, share: float | None) -> Bin:
    return {"name": name, "lower": low, "upper": high, "share": drawn(share)}


def _axis(label: str, unit: str, scale: Any = "linear", least: float | None = None) -> Axis:
    return {"label": label, "unit": unit, "scale": scale, "least": least, "most": None}


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


def _metric_axis(metric: MetricSpec, own: Shown) -> Axis:
    """The axis of a metric of groups: divergences and rates from 0, agreement up to 1."""
    least = 0.0 if metric.kind in ("nats", "rate") else None
    most = 1.0 if metric.kind == "share" else None
    return {
        "label": own.heading,
        "unit": metric.unit,
        "scale": "linear",
        "least": least,
        "most": most,
    }


# Of a grouping that users name each metric is a table of its own.
_AXES = {metric.key: _metric_axis(metric, own) for metric, own in shown("page groups")}


def survival_curves(records: Mapping[str, Record]) -> list[Chart]:
    """The curve of each run (id → its record): after how many tokens which share is the same, all in
    one chart; none without."""
    # Of one text and one base: all of them are of one kind, the last one's.
    series: list[Series] = []
    kind = "sampled"
    for run, record in records.items():
        if not (found := record.survival):
            continue
        kind = "greedy" if found.greedy else "by_base" if found.sampled.by_base else "sampled"
        curve = found.greedy or found.sampled
        nothing: list[float | None] = [None] * len(curve.tokens)
        series.append(
            {
                "run": run,
                "x": [float(n) for n in curve.tokens],
                "y": [drawn(share) for share in curve.whole],
                "lower": nothing,
                "upper": nothing,
                "n": [record.plan.scored] * len(curve.tokens),
            }
        )
    if not series:
        return []
    title, words = _SURVIVAL[kind]
    whole: Axis = {**_axis("share still the same", "", least=0.0), "most": 1.0}
    return [
        {
            "id": "survival",
            "title": title,
            "words": words,
            "kind": "line",
            "x": _axis("tokens", "", "log"),
            "y": whole,
            "bins": None,
            "series": series,
        }
    ]


class _Point(Section, frozen=True, kw_only=True):
    predicted: float
    bits_per_weight: float


class _Measured(Section, frozen=True, kw_only=True):
    n: Count


class _Recipe(Section, frozen=True, kw_only=True):
    """The fields of a recipe's search that are drawn."""

    curve: list[_Point]
    measured: _Measured


def _read_recipe(path: Path) -> dict[str, Any]:
    """A recipe's search in a run's folder. Raises RunFolderError for what isn't as it was written."""
    value = read_json(path)
    if not isinstance(value, dict) or misfit(value, _Recipe):
        raise RunFolderError(f"{path}: is no recipe's search of scoremode's")
    if value.get("sha256") != seal_of(value):
        raise RunFolderError(f"{path}: was changed after it was written: its sha256 is another")
    return value


def recipe_curves(folders: Mapping[str, Path]) -> list[Chart]:
    """The curve of each recipe's search: predicted KLD against bits, all in one chart; none without.
    Raises RunFolderError."""
    series: list[Series] = []
    for run, folder in folders.items():
        if not os.path.lexists(path := folder / "recipe.json"):
            continue
        value = _read_recipe(path)
        # A choice of the base alone is at 0, which a logarithmic axis has no place for.
        points = [point for point in value["curve"] if point["predicted"] > 0]
        nothing: list[float | None] = [None] * len(points)
        series.append(
            {
                "run": run,
                "x": [rounded(point["bits_per_weight"]) for point in points],
                "y": [rounded(point["predicted"]) for point in points],
                "lower": nothing,
                "upper": nothing,
                "n": [value["measured"]["n"]] * len(points),
            }
        )
    if not series:
        return []
    return [
        {
            "id": "recipe",
            "title": "The best choice of formats for every size",
            "words": "Predicted KLD of the best choice of a format for each part, from the quants that "
            "a recipe was searched in: the sum of what the parts do alone. The choice that was "
            "measured is a run of its own.",
            "kind": "line",
            "x": _axis("bits per weight", "", "linear"),
            "y": _axis("predicted KLD", "nats", "log"),
            "bins": None,
            "series": series,
        }
    ]
