"""The charts of a section, a row of CHARTS each: what is kept of a run's Scores for it, its data, its
words, and how it is drawn. The page, its made data in tests and the table in docs/report.md are made of
the rows.

Frontiers (size against a metric) are rows of `FRONTIERS` in comparison.py.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import RunFolderError
from scoremode.report.document import metric_of
from scoremode.report.groups import groups_of
from scoremode.report.page.chart_types import Spec, curves, rungs
from scoremode.report.page.definition import Axis, Bin, Chart, Measured, Series, Tail
from scoremode.results.folders.store import read_json, seal_of
from scoremode.results.ladder import KINDS as STEPS
from scoremode.results.ladder import finished_ladder, is_ladder
from scoremode.results.metrics import MetricSpec, Shown, shown
from scoremode.results.record.definition import Record
from scoremode.results.record.section import Count, Metric, Section, decode, misfit
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.means import FLOOR, Blocks, Mean, band, curve, estimates

Floats = NDArray[np.float64]
_CONFIDENCES = tuple(i / 10 for i in range(11))
_PROBABILITIES = (0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_POSITIONS = 24
# Four bins a decade, from FLOOR to more than any KLD of a softmax over float32.
_DECADE, _DECADES = 4, 12
_BAND_POINTS = 25


@dataclass(frozen=True)
class Runs:
    """What the charts of a section are made of, by the ids of its runs, best first.

    - `reduced`: of the runs against the base, what `reductions` kept
    - `records`: of the same runs
    - `folders`: of all runs
    """

    reduced: Mapping[str, Mapping[str, Any]]
    records: Mapping[str, Record]
    folders: Mapping[str, Path]

    def of(self, chart: str) -> dict[str, Any]:
        """What the chart's `reduce` kept, by run."""
        return {run: kept[chart] for run, kept in self.reduced.items()}


@dataclass(frozen=True)
class ChartKind:
    """A chart of the page.

    - `id`, `title`, `words`, `x`, `y`, `kind`: of its `Chart`
    - `make`: its charts, none without data. A chart of a text's groups is one for each metric.
    - `reduce`: what is kept of a run's Scores for `make`; None for what records and files have
    - `draw`: its spec; None for one that isn't drawn. `tabled`: whether it is a table. What is neither
      is in the page's data alone.
    """

    id: str
    title: str
    words: str
    x: Axis
    y: Axis
    make: Callable[["ChartKind", Runs], list[Chart]]
    reduce: Callable[[Scores, Comparison, Blocks], Any] | None = None
    draw: Callable[[Chart], Spec] | None = None
    tabled: bool = False
    kind: Literal["line", "bars"] = "line"

    def chart(self, bins: list[Bin] | None, series: list[Series], **others: Any) -> Chart:
        """The chart of these data; `others`: fields that differ from the row's."""
        made: Chart = {
            "id": self.id,
            "title": self.title,
            "words": self.words,
            "kind": self.kind,
            "x": self.x,
            "y": self.y,
            "bins": bins,
            "series": series,
        }
        return {**made, **others}  # type: ignore[typeddict-item]


def kind_of(chart: Chart) -> ChartKind:
    """The row of a chart; of one of a text's groups, `group:label`, whatever its metric."""
    return CHARTS[":".join(chart["id"].split(":")[:2])]


def charts(runs: Runs) -> list[Chart]:
    """Every chart but the tail."""
    return [chart for kind in CHARTS.values() for chart in kind.make(kind, runs)]


def reductions(scores: Scores, against: Comparison, blocks: Blocks) -> dict[str, Any]:
    """What the charts need of a run's Scores, by the chart's id."""
    return {
        kind.id: kind.reduce(scores, against, blocks)
        for kind in CHARTS.values()
        if kind.reduce is not None
    }


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


def _plain(run: str, x: Sequence[float], y: Sequence[float], n: int) -> Series:
    """A line without intervals, of `n` targets at every point."""
    nothing: list[float | None] = [None] * len(x)
    return {
        "run": run,
        "x": [rounded(value) for value in x],
        "y": [drawn(value) for value in y],
        "lower": nothing,
        "upper": nothing,
        "n": [n] * len(x),
    }


def _bin(name: str, low: float | None, high: float | None, share: float | None) -> Bin:
    return {"name": name, "lower": low, "upper": high, "share": drawn(share)}


def _axis(
    label: str, unit: str = "", scale: Any = "linear", least: float | None = None,
    most: float | None = None,
) -> Axis:  # fmt: skip
    return {"label": label, "unit": unit, "scale": scale, "least": least, "most": most}


def _metric_axis(metric: MetricSpec, own: Shown) -> Axis:
    """The axis of a metric of groups: divergences and rates from 0, agreement up to 1."""
    least = 0.0 if metric.kind in ("nats", "rate") else None
    return _axis(own.heading, metric.unit, "linear", least, 1.0 if metric.kind == "share" else None)


# Of a grouping that users name each metric is a table of its own.
_AXES = {metric.key: _metric_axis(metric, own) for metric, own in shown("page groups")}


# --- The tail, which is no row of CHARTS: its points are chosen, not binned


@dataclass(frozen=True, eq=False)
class TailPoints:
    """Points of the curve x → targets of at least that KLD, `count` of `of`; `error` in decades; and
    the interval of the share at some of them, by their number."""

    x: Floats
    count: NDArray[np.int64]
    of: int
    error: float
    band: dict[int, Metric]


def tail_points(kld: Floats, blocks: Blocks) -> TailPoints:
    """The tail of KLDs [N]."""
    x, count, error = curve(kld)
    # The corners of the band, both ends among them.
    at = np.unique(np.linspace(0, len(x) - 1, min(_BAND_POINTS, len(x))).astype(int)).tolist()
    found = band(kld, [float(x[i]) for i in at], blocks)
    return TailPoints(x, count, len(kld), error, dict(zip(at, found, strict=True)))


def tail(run: str, points: TailPoints) -> Tail:
    """The curve of a run: which share of targets has at least that KLD."""
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


# --- KLD in bins of a quantity


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


def histogram(scores: Scores, against: Comparison, blocks: Blocks) -> Binned:
    """Shares of targets by log10 of their KLD: in the first bin all below FLOOR, in the last all that
    are beyond it. Each target counts as one."""
    kld, lowest = against.kld, math.log10(FLOOR)
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


def _histogram(kind: ChartKind, runs: Runs) -> list[Chart]:
    """Bins from the first to the last that any run has a target in."""
    of: Mapping[str, Binned] = runs.of(kind.id)
    if not of:
        return []
    edges = next(iter(of.values())).edges
    filled = [i for i in range(len(edges) - 1) if any(run.n[i] for run in of.values())]
    there = range(filled[0], filled[-1] + 1)
    bins = []
    for i in there:
        # The first and the last bin have no end; they are drawn as wide as the others.
        low, high = edges[i], edges[i + 1]
        name = f"{10**low:.3g} to {10**high:.3g}"
        if i == 0:
            name, low = f"below {FLOOR:g}", high - (edges[2] - edges[1])
        elif i == len(edges) - 2:
            name, high = f"{10**low:g} and more", low + (edges[2] - edges[1])
        bins.append(_bin(name, low, high, None))
    x = [((b["lower"] or 0.0) + (b["upper"] or 0.0)) / 2 for b in bins]
    series = [
        _series(run, x, [own.metrics[i] for i in there], [own.n[i] for i in there])
        for run, own in of.items()
    ]
    return [kind.chart(bins, series)]


def _binned(
    id_: str,
    title: str,
    words: str,
    label: str,
    column: Callable[[Scores, Comparison], NDArray],
    edges: Callable[[Scores], Sequence[float]],
    *,
    unequal: bool = False,
    whole: bool = False,
) -> ChartKind:
    """A chart of the mean KLD in bins of a quantity.

    - `label`: of the quantity, on the axis
    - `column`: [N], the quantity of each target; `edges`: of the bins, rising
    - `unequal`: whether the bins are so unequal in width that they stand side by side as categories
    - `whole`: whether the quantity is a whole number
    """

    def reduce(scores: Scores, against: Comparison, blocks: Blocks) -> Binned:
        return _by_bin(column(scores, against), edges(scores), against.kld, blocks)

    def make(kind: ChartKind, runs: Runs) -> list[Chart]:
        of: Mapping[str, Binned] = runs.of(id_)
        if not of:
            return []
        first = next(iter(of.values()))
        bins = [
            _bin(_between(low, high, whole=whole), low, high, n / first.of)
            for (low, high), n in zip(pairwise(first.edges), first.n, strict=True)
        ]
        # A position is a whole number: the middle of 1, 2, 3 is 2.
        less = 1 if whole else 0
        x = [
            float(i) if unequal else (first.edges[i] + first.edges[i + 1] - less) / 2
            for i in range(len(bins))
        ]
        return [kind.chart(bins, [_series(r, x, own.metrics, own.n) for r, own in of.items()])]

    x, y = _axis(label, "", "category" if unequal else "linear"), _AXES["kld"]
    draw = None if unequal else curves
    return ChartKind(id_, title, words, x, y, make, reduce, draw, tabled=unequal)


def _by_bin(column: NDArray, edges: Sequence[float], values: Floats, blocks: Blocks) -> Binned:
    # What rounding leaves above 1, and 1 itself, are of the last bin.
    group = np.digitize(column, edges[1:-1])
    bins = len(edges) - 1
    means = blocks.means_by(group, bins, {"": values})
    found = estimates({i: m[""] for i, m in enumerate(means) if m}, blocks.length)
    n = np.bincount(group, minlength=bins).tolist()
    assert len(list(pairwise(edges))) == bins
    return Binned(tuple(edges), [found.get(i) for i in range(bins)], n, len(values))


def _between(low: float, high: float, *, whole: bool) -> str:
    if not whole:
        return f"{low:g} to {high:g}"
    return f"{low:g} to {high - 1:g}" if high - low > 1 else f"{low:g}"


def _position_edges(scores: Scores) -> list[float]:
    first, last = int(scores.position.min()), int(scores.position.max()) + 1
    width = math.ceil((last - first) / _POSITIONS)
    return [float(edge) for edge in (*range(first, last, width), last)]


# --- The record's own groups

_LABEL_WORDS = {
    "ppl_ratio": ("PPL by group", "Each group's PPL over the base's."),
    "top1": (
        "Same top-1 by group",
        "Share of each group's targets where model and base find the same token the likeliest.",
    ),
    "acceptance": (
        "Acceptance by group",
        "Share of each group's tokens, drafted by sampling from the model, that the base accepts.",
    ),
    "confident_flips": (
        "Confident flips by group",
        "In 10,000 of a group's targets where the base was sure, those where the model finds another "
        "token the likeliest.",
    ),
}


def _groups(kind: ChartKind, runs: Runs) -> list[Chart]:
    """KLD in the record's own groups, side by side."""
    name = kind.id.removeprefix("group:")
    of = {run: groups_of(record).get(name) or [] for run, record in runs.records.items()}
    return [_by_groups(kind, "kld", of)] if any(of.values()) else []


def _labels(kind: ChartKind, runs: Runs) -> list[Chart]:
    """Of the groups that a user named, every metric that the page shows of groups."""
    found = _groups(kind, runs)
    of = {run: groups_of(record).get("label") or [] for run, record in runs.records.items()}
    others = [metric for metric, _ in shown("page groups") if metric.key != "kld"] if found else []
    for metric in others:
        plain = f"{_AXES[metric.key]['label']} by group", metric.words
        title, words = _LABEL_WORDS.get(metric.key, plain)
        own = {"id": f"{kind.id}:{metric.key}", "title": title, "words": words}
        found.append(_by_groups(kind, metric.key, of, y=_AXES[metric.key], **own))
    return found


def _turns(kind: ChartKind, runs: Runs) -> list[Chart]:
    """The places in a turn, counted from 1 so that a logarithmic axis has the first."""
    found = _groups(kind, runs)
    ends = {}
    for record in runs.records.values():
        for group in groups_of(record).get("turn") or []:
            low = group["from"] + 1
            high = 2 * low if group["to"] is None else group["to"] + 1
            ends[group["group"]] = (low, high)
    for chart in found:
        for one in chart["series"]:
            middles = (ends[b["name"]] for b in chart["bins"] or ())
            one["x"] = [rounded(math.sqrt(low * high)) for low, high in middles]
    return found


def _by_groups(
    kind: ChartKind, metric: str, of: Mapping[str, Sequence[Mapping[str, Any]]], **others: Any
) -> Chart:
    names: dict[str, Mapping[str, Any]] = {}
    for groups in of.values():
        for group in groups:
            names.setdefault(group["group"], group)
    bins = [_bin(g["group"], g.get("from"), g.get("to"), g["share"]) for g in names.values()]
    series = []
    for run, groups in of.items():
        by_name = {group["group"]: group for group in groups}
        found = [by_name.get(group) for group in names]
        metrics = [metric_of(g and g.get(metric)) for g in found]
        n = [g[metric]["n"] if g and metric in g else 0 for g in found]
        series.append(_series(run, [float(i) for i in range(len(names))], metrics, n))
    return kind.chart(bins, series, **others)


def _group_kind(
    name: str, title: str, words: str, label: str, scale: str = "category", **others: Any
) -> ChartKind:
    made = {"make": _groups, "kind": "bars", **others}
    x = _axis(label, "", scale)
    return ChartKind(f"group:{name}", title, words, x, _AXES["kld"], **made)


# --- How long generations stay the same

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
}


def _survival(kind: ChartKind, runs: Runs) -> list[Chart]:
    """After how many tokens which share is the same, all runs in one chart; none without."""
    series: list[Series] = []
    # Of one text and one base: all of them are of one kind, the last one's.
    title, words = kind.title, kind.words
    for run, record in runs.records.items():
        if not (found := record.survival):
            continue
        of = "greedy" if found.greedy else "by_base" if found.sampled.by_base else "sampled"
        title, words = _SURVIVAL.get(of, (kind.title, kind.words))
        own = found.greedy or found.sampled
        series.append(_plain(run, own.tokens, own.whole, record.plan.scored))
    return [kind.chart(None, series, title=title, words=words)] if series else []


# --- Recipes


class _Point(Section, frozen=True, kw_only=True):
    predicted: float
    bits_per_weight: float


class _Measured(Section, frozen=True, kw_only=True):
    n: Count


class _Recipe(Section, frozen=True, kw_only=True):
    """The fields of a recipe's search that are drawn."""

    curve: list[_Point]
    measured: _Measured


def _read_recipe(path: Path) -> _Recipe:
    """A recipe's search in a run's folder. Raises RunFolderError for what isn't as it was written."""
    value = read_json(path)
    if not isinstance(value, dict) or misfit(value, _Recipe):
        raise RunFolderError(f"{path}: is no recipe's search of scoremode's")
    if value.get("sha256") != seal_of(value):
        raise RunFolderError(f"{path}: was changed after it was written: its sha256 is another")
    return decode(value, _Recipe)


def _recipes(kind: ChartKind, runs: Runs) -> list[Chart]:
    """Predicted KLD against bits of each recipe's search, all in one chart; none without. Raises
    RunFolderError."""
    series: list[Series] = []
    for run, folder in runs.folders.items():
        if not os.path.lexists(path := folder / "recipe.json"):
            continue
        recipe = _read_recipe(path)
        # A choice of the base alone is at 0, which a logarithmic axis has no place for.
        points = [point for point in recipe.curve if point.predicted > 0]
        bits, kld = [p.bits_per_weight for p in points], [p.predicted for p in points]
        series.append(_plain(run, bits, kld, recipe.measured.n))
    return [kind.chart(None, series)] if series else []


# --- Ladders


def _ladders(kind: ChartKind, runs: Runs) -> list[Chart]:
    """Each step's KLD against the top and against the step before, in the order of the steps; none
    without a ladder. Raises RunFolderError."""
    found: dict[Path, dict[str, Any]] = {}
    points: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for run, folder in runs.folders.items():
        # A step's own folder, or one in it.
        place, name = folder.parent, folder.name
        if name not in STEPS:
            place, name = place.parent, place.name
        if name not in STEPS or not is_ladder(place):
            continue
        if place not in found:
            lines = finished_ladder(place)["findings"]["steps"]  # type: ignore[typeddict-item]
            found[place] = {line["step"]: line for line in lines}
        if name in found[place]:
            points[run] = list(STEPS).index(name), found[place][name]
    places = sorted({place for place, _ in points.values()})
    bins = [_bin(list(STEPS)[place], None, None, None) for place in places]
    series = []
    for run, (place, line) in points.items():
        metrics = [metric_of(line[side]["kld"]) for side in ("against_top", "against_before")]
        x = float(places.index(place))
        series.append(_series(run, [x, x], metrics, [m.n for m in metrics if m is not None]))
    return [kind.chart(bins, series)] if series else []


_KINDS = (
    ChartKind(
        "ladder",
        "From the base in float32 to what is served",
        "Read from left to right. Filled: each step's KLD against the base in float32, which rises "
        "where a loss comes in. Hollow: against the step before; high where the first is level, two "
        "computations differ and neither is further off.",
        _axis("step", "", "category"),
        _axis("KLD", "nats", "log"),
        _ladders,
        draw=rungs,
    ),
    ChartKind(
        "histogram",
        "Distribution of KLD",
        "Share of targets by the size of their KLD, four bins a decade.",
        _axis("log10 of KLD", "nats"),
        _axis("share of targets", "", least=0.0),
        _histogram,
        histogram,
        kind="bars",
    ),
    _binned(
        "confidence",
        "KLD by the base's confidence",
        "Mean KLD of the targets where the base gives its likeliest token that probability. Where the "
        "base is sure, a large KLD changes what is written.",
        "base's probability of its likeliest token",
        lambda scores, against: np.exp(against.base_top1_logprob),
        lambda scores: _CONFIDENCES,
    ),
    _binned(
        "target_probability",
        "KLD by the target's probability",
        "Mean KLD of the targets that the base finds that likely.",
        "base's probability of the target",
        lambda scores, against: np.exp(against.base_logprob),
        lambda scores: _PROBABILITIES,
        unequal=True,
    ),
    _binned(
        "position",
        "KLD by position in the window",
        "Mean KLD of the targets with so many tokens before them. Quantized keys and values, or "
        "positions out of range, show as a rise to the right.",
        "position in the window",
        lambda scores, against: scores.position,
        _position_edges,
        whole=True,
    ),
    _group_kind(
        "label",
        "KLD by group",
        "Mean KLD of each group of the text, as --group-by named them.",
        "group",
        make=_labels,
        tabled=True,
    ),
    _group_kind(
        "turn",
        "KLD by place in the turn",
        "Mean KLD of an assistant's first token, and further into its turn. A rise at the left is how "
        "an answer begins otherwise; one at the right, how it drifts.",
        "place in the assistant's turn, from 1",
        "log",
        make=_turns,
        draw=curves,
        kind="line",
    ),
    _group_kind(
        "confidence",
        "KLD by the base's confidence, in the record's groups",
        "The record's own groups of the base's probability of its likeliest token.",
        "base's probability of its likeliest token",
    ),
    _group_kind(
        "position",
        "KLD by position, in the record's groups",
        "The record's own groups, each twice as long as the one before.",
        "position in the window",
    ),
    _group_kind(
        "token_class",
        "KLD by kind of token",
        "Mean KLD by what the target is, by the token alone: a word at the start of a line counts as "
        "inside one.",
        "kind of token",
        tabled=True,
    ),
    ChartKind(
        "survival",
        "How long samples would stay the same",
        "After so many tokens of this text, the share of samples that agree, if model and base are "
        "drawn as alike as can be. Neither wrote this text; on what they write it may be another.",
        _axis("tokens", "", "log"),
        _axis("share still the same", "", least=0.0, most=1.0),
        _survival,
        draw=curves,
    ),
    ChartKind(
        "recipe",
        "The best choice of formats for every size",
        "Predicted KLD of the best choice of a format for each part, from the quants that a recipe "
        "was searched in: the sum of what the parts do alone. The choice that was measured is a run "
        "of its own.",
        _axis("bits per weight"),
        _axis("predicted KLD", "nats", "log"),
        _recipes,
        draw=curves,
    ),
)
# In the page's order.
CHARTS = {kind.id: kind for kind in _KINDS}
