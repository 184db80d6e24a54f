"""The figures of a section: which charts there are, of which rows, what stands above them; and plots in
files.

Rows are joined of the report's data and of who each run is in the charts. Lines stay arrays (`x`, `y`,
…) in a row a run, which the charts' specs flatten. The page's script joins lines itself, of the
report's data that the page holds, so that a page holds each number once.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.lib.files import atomic
from scoremode.report.document import LAYER_BITS
from scoremode.report.page.chart_types import (
    PERCENTILES,
    SCATTER_HEIGHT,
    X_PADDING,
    Y_PADDING,
    Box,
    Scale,
    Spec,
    lines,
    logarithmic,
    percentiles,
    placed,
    plotting,
    quantity,
    scatter,
    share,
    signed,
)
from scoremode.report.page.charts import kind_of
from scoremode.report.page.comparison import FRONTIERS
from scoremode.report.page.data import title_of
from scoremode.report.page.definition import Frontier, ReportData, Run, Section
from scoremode.report.page.style import (
    SHAPES,
    TINTS,
    bits_words,
    interval_words,
    kld_words,
    plot_config,
    ratio_words,
    size_unit,
    size_words,
    visible,
)

_SIZES = {
    "bits_file": "bits/weight, file",
    "bits_body": LAYER_BITS,
    "bytes": "size of the files",
}
PERCENTILE_WORDS = (
    "From the median to the largest KLD",
    "In the order of the ranking. A long way from the mean to the right end: mostly right, and now and "
    "then badly wrong.",
)
TAIL_WORDS = (
    "The tail of the KLD",
    "Read across: how far off the worst 1 %, 0.1 %, … of the tokens are at least. Both axes are "
    "logarithmic; the further left and the steeper, the better.",
)
_WIDTH = 520
# Characters of a line above a plot.
_LINE = 100
_SCALE = 2.0
Row = dict[str, Any]
# Widths of the plane in the page's charts, in pixels, and of plots, for where names stand.
_ROOMS = {"wide": 430, "narrow": 250, "file": _WIDTH}
_LONGEST = 30


@dataclass(frozen=True)
class Figure:
    """A figure: `choices` are specs of the same chart, by what a reader may choose."""

    name: str
    title: str
    caption: str
    choices: dict[str, Spec]


def figures(section: Section, own: dict[str, list[Row]]) -> list[Figure]:
    """Every figure that the section has data for. `own`: what `own_rows` made of it."""
    found = [_frontiers(section, own, quality) for quality in FRONTIERS]
    if rows := own.get("percentiles"):
        runs = len({row["id"] for row in rows})
        spec = percentiles(logarithmic(row["value"] for row in rows), runs)
        title, caption = PERCENTILE_WORDS
        drawn_ids = {row["id"] for row in rows}
        zero = _not_drawn(
            run["name"]
            for run in quants(section)
            if run["kld"] is not None and run["id"] not in drawn_ids
        )
        found.append(Figure("percentiles", title, caption + zero, {"": spec}))
    if section["tail"]:
        across, up = (
            logarithmic(v for one in section["tail"] for v in one[key])
            for key in ("x", "y")  # type: ignore[literal-required]
        )
        x, y = quantity("x", "KLD (nats)", across), quantity("y", "share of tokens above it", up)
        found.append(Figure("tail", *TAIL_WORDS, {"": lines("tail", x, y, marked=False)}))
    for chart in section["charts"]:
        if (draw := kind_of(chart).draw) is not None:
            spec = draw(chart)
            found.append(Figure(chart["id"], chart["title"], chart["words"], {"": spec}))
    return [figure for figure in found if figure is not None]


def _frontiers(section: Section, own: dict[str, list[Row]], quality: str) -> Figure | None:
    kind = FRONTIERS[quality]
    known = {one["id"]: one for one in section["frontiers"]}
    names = {run["id"]: run["name"] for run in section["runs"]}
    choices, far, zero = {}, "", []
    for size, words in _SIZES.items():
        name = f"{size}/{quality}"
        if not (rows := own.get(name)):
            continue
        shown_ids = {row["id"] for row in rows}
        zero += [names[p["run"]] for p in known[name]["points"] if p["run"] not in shown_ids]
        _, unit = unit_of(known[name])
        base, shown = known[name]["base"], _shown_base(known[name], rows)
        if base is not None and shown is None and not far:
            of = size_words(int(base[0])) if size == "bytes" else f"{bits_words(base[0])} {words}"
            far = f" The base itself ({of}) lies off to the right."
        x_title = f"{words} ({unit})" if unit else words
        choices[unit or words] = scatter(name, x_title, kind.axis, axis_of(rows, quality), shown)
    return (
        Figure(quality, kind.title, kind.caption + far + _not_drawn(zero), choices)
        if choices
        else None
    )


def _shown_base(frontier: Frontier, rows: Sequence[Row]) -> float | None:
    """The base's size on the axis of a frontier, None where it is too far off, or not known."""
    divisor, _ = unit_of(frontier)
    size = None if frontier["base"] is None else frontier["base"][0] / divisor
    return size if size is not None and size <= 1.3 * max(row["x"] for row in rows) else None


def _not_drawn(names: Iterable[str]) -> str:
    """The end of a caption, on runs whose value is 0, which a logarithmic scale has no place for."""
    listed = ", ".join(dict.fromkeys(names))
    return f" Not drawn, since the scale has no 0: {listed}, at 0." if listed else ""


def write_plots(report: ReportData, folder: Path) -> list[Path]:
    """Writes each chart of each section into `folder`, made where it is missing, as SVG, as PNG, and as
    SVG for dark pages (`NAME-dark.svg`); returns the files.

    A file is there whole or not at all. Raises UsageError where the extra is missing, RunFolderError
    for a folder that can't be written.
    """
    renderer = plotting()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror}") from None
    written = []
    for name, light, dark in _plots(visible(report)):
        for end, spec in (("", light), ("-dark", dark)):
            written.append(folder / f"{name}{end}.svg")
            with atomic(written[-1]) as tmp:
                tmp.write_text(renderer.vegalite_to_svg(spec), encoding="utf-8")
        written.append(folder / f"{name}.png")
        with atomic(written[-1]) as tmp:
            tmp.write_bytes(renderer.vegalite_to_png(light, scale=_SCALE))
    return written


def _plots(report: ReportData) -> list[tuple[str, str, str]]:
    """A file's name without its end, and the spec with its data in both themes, as JSON."""
    found = []
    for section in report["sections"]:
        who = identities(section)
        own = own_rows(section, who)
        legend = [who[run["id"]] for run in quants(section)]
        for figure in figures(section, own):
            for choice, spec in figure.choices.items():
                data = spec["data"]["name"]
                rows = own[data] if data in own else line_rows(section, data, who)
                named = "text" in json.dumps(spec["layer"])
                title = {"text": figure.title, "subtitle": _plot_words(report, section)}
                light, dark = (
                    json.dumps(_whole(spec | {"title": title}, rows, legend, config, named=named))
                    for config in (plot_config(), plot_config(dark=True))
                )
                words = [figure.name, choice] if len(figure.choices) > 1 else [figure.name]
                if len(report["sections"]) > 1:
                    words.insert(0, section["id"])
                name = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(words)).strip("-").lower()
                found.append((name, light, dark))
    return found


def _plot_words(report: ReportData, section: Section) -> list[str]:
    """Lines that say what a plot is of, wherever it is shown alone: base, text, protocol."""
    own = title_of([section])
    said = [] if report["title"] in (own, title_of(report["sections"])) else [report["title"]]
    words = [*said, own, f"protocol {section['protocol_words']}"]
    return [line for one in words for line in textwrap.wrap(one, _LINE)]


def _whole(spec: Spec, rows: list[Any], legend: list[Any], config: Row, *, named: bool) -> Spec:
    """A spec with its data, of a fixed width; with a legend where names don't stand in it."""
    whole = spec | {
        "params": [
            one | {"value": "file"} if one["name"] == "room" else one for one in spec["params"]
        ],
        "width": _WIDTH,
        "autosize": {"type": "pad"},
        "datasets": {spec["data"]["name"]: rows},
        "config": config,
    }
    if named or spec["data"]["name"] == "percentiles":
        return whole
    tinted = [one for one in legend if one["tint"] < len(TINTS) - 1]
    names = {str(one["tint"]): one["short"] for one in tinted}
    words = f"({json.dumps(names)})[datum.label] || 'others'"
    values = [one["tint"] for one in tinted]
    if len(tinted) < len(legend):
        values.append(len(TINTS) - 1)
    shapes = [SHAPES[tint] for tint in values]
    colours = [config["range"]["category"][tint] for tint in values]
    told = {"values": values, "labelExpr": words, "title": None}
    layers = json.loads(json.dumps(whole["layer"]))
    for layer in layers:
        for channel, of in (("shape", shapes), ("color", colours)):
            if channel in layer["encoding"]:
                layer["encoding"][channel] |= {
                    "legend": told,
                    "scale": {"domain": values, "range": of},
                }
    return whole | {"layer": layers}


def quants(section: Section) -> list[Run]:
    """The runs that are ranked: all but the base's own."""
    return [run for run in section["runs"] if not run["is_base"]]


def identities(section: Section) -> dict[str, Row]:
    """A run's id → `id`, `name`, `short` and `tint` in the charts.

    With more runs than tints, those on the first frontier have one, the closest first, as far as there
    are; all others share the last.
    """
    free = len(TINTS) - 1
    ids = [run["id"] for run in quants(section)]
    coloured = ids
    if len(ids) > free and section["frontiers"]:
        ahead = set(preferred(section)["line"])
        coloured = [one for one in ids if one in ahead]
    tints = {one: place for place, one in enumerate(coloured[:free])}
    return {
        run["id"]: {
            "id": run["id"],
            "name": run["name"],
            "short": _cut(run["name"]),
            "tint": tints.get(run["id"], free),
        }
        for run in section["runs"]
    }


def preferred(section: Section) -> Frontier:
    """The frontier that colours and findings go by: of the whole file's bits, where they are known."""
    named = {one["id"]: one for one in section["frontiers"] if one["points"]}
    for name in ("bits_file/kld", "bytes/kld", "bits_body/kld", "bits_file/ppl", "bytes/ppl"):
        if name in named:
            return named[name]
    return section["frontiers"][0]


def own_rows(section: Section, who: dict[str, Row]) -> dict[str, list[Row]]:
    """Name → rows of what only Python makes: frontiers by their id, and `percentiles`."""
    found = {one["id"]: frontier_rows(section, one, who) for one in section["frontiers"]}
    found["percentiles"] = _percentiles(section, who)
    return {name: rows for name, rows in found.items() if rows}


def line_rows(section: Section, name: str, who: dict[str, Row]) -> list[Row]:
    """The rows of `tail`, or of the chart with the id `name`: as the page's script joins them."""
    if name == "tail":
        return [who[one["run"]] | dict(one) for one in section["tail"]]
    chart = next(one for one in section["charts"] if one["id"] == name)
    return [who[one["run"]] | dict(one) for one in chart["series"]]


def unit_of(frontier: Frontier) -> tuple[float, str]:
    """The divisor of a frontier's sizes, and the unit that its axis has then."""
    if frontier["id"].startswith("bytes/"):
        return size_unit([point["x"] for point in frontier["points"]])
    return 1.0, ""


def frontier_rows(section: Section, frontier: Frontier, who: dict[str, Row]) -> list[Row]:
    """A row a point, with where its name stands; a point that a logarithm has no place for has none."""
    size, of = frontier["id"].split("/")
    divisor, _ = unit_of(frontier) if frontier["points"] else (1.0, "")
    runs = {run["id"]: run for run in section["runs"]}
    names = {run["id"]: run["name"] for run in section["runs"]}
    rows = []
    for point in frontier["points"]:
        run = runs[point["run"]]
        words = ratio_words if of == "ppl_ratio" else kld_words
        metric: Any = run[of]  # type: ignore[literal-required]
        y, low, high = (_as_drawn(of, point[end]) for end in ("y", "lower", "upper"))  # type: ignore[literal-required]
        by = point["by"][:3] if point["standing"] == "beaten" else []
        beaten = ", ".join(names[one] for one in by)
        rows.append(
            who[point["run"]]
            | {
                "x": point["x"] / divisor,
                "y": y,
                "low": None if high is None else low,
                "high": None if low is None else high,
                "ahead": point["run"] in frontier["line"],
                "size": size_words(int(point["x"])) if size == "bytes" else bits_words(point["x"]),
                "said": f"{words(point['y'])} {interval_words(metric, words)}".strip(),
                "standing": f"beaten by {beaten}"
                if beaten and point["standing"] == "beaten"
                else point["standing"],
            }
        )
    shown = [row for row in rows if row["y"] is not None]
    if shown:
        _place(shown, of, _shown_base(frontier, shown))
    return shown


def axis_of(rows: Sequence[Row], of: str) -> Scale:
    """The axis of a frontier's y."""
    values = [row[field] for row in rows for field in ("y", "low", "high")]
    return signed(values) if of == "ppl_ratio" else logarithmic(values)


def _as_drawn(of: str, value: float | None) -> float | None:
    if value is None:
        return None
    if of == "ppl_ratio":
        return float(f"{100 * (value - 1):.7g}")
    return value if value > 0 else None


def _place(rows: list[Row], of: str, base: float | None) -> None:
    """Adds where each run's name stands in each room; `base`: the base's size where it is shown."""
    axis, xs = axis_of(rows, of), [row["x"] for row in rows]
    xs += [] if base is None else [base]
    low, most = min(xs), max(xs)
    # On the frontier first: their names are looked for. If there is no room for all, from the edge.
    orders = [
        sorted(rows, key=lambda row: not row["ahead"]),
        sorted(rows, key=lambda row: -row["x"]),
    ]
    for room, width in _ROOMS.items():

        def across(value: float, width: float = width) -> float:
            part = (value - low) / (most - low) if most > low else 0.5
            return X_PADDING + part * (width - 2 * X_PADDING)

        further: list[Box] = []
        if axis.kind == "symlog":
            further.append(_segment((0, _up(axis, 0.0)), (width, _up(axis, 0.0))))
        if base is not None:
            # The line, and the word at its top.
            at = across(base)
            further += [_segment((at, 0), (at, SCATTER_HEIGHT)), (at - 32, 0, at, 15)]
        best: list[tuple[Row, Spec | None]] = []
        for order in orders:
            points = [(across(row["x"]), _up(axis, row["y"])) for row in order]
            names, lines = [row["short"] for row in order], _lines(order, points, axis)
            found = placed(points, names, width, SCATTER_HEIGHT, lines + further)
            missing = found.count(None)
            if not best or missing < sum(place is None for _, place in best):
                best = list(zip(order, found, strict=True))
            if not missing:
                break
        for row, place in best:
            row[room] = place


def _up(axis: Scale, value: float) -> float:
    """The pixel of a value, from the top of a scatter."""
    return Y_PADDING + (1 - share(axis, value)) * (SCATTER_HEIGHT - 2 * Y_PADDING)


def _lines(rows: Sequence[Row], points: Sequence[tuple[float, float]], axis: Scale) -> list[Box]:
    """The intervals of `rows` and the steps of the frontier, as boxes."""
    lines = [
        _segment((x, _up(axis, row["low"])), (x, _up(axis, row["high"])))
        for row, (x, _) in zip(rows, points, strict=True)
        if row["low"] is not None and row["high"] is not None
    ]
    ahead = sorted(point for row, point in zip(rows, points, strict=True) if row["ahead"])
    for (x, y), (right, below) in pairwise(ahead):
        lines += [_segment((x, y), (right, y)), _segment((right, y), (right, below))]
    return lines


def _segment(a: tuple[float, float], b: tuple[float, float]) -> Box:
    left, right = sorted((a[0], b[0]))
    top, bottom = sorted((a[1], b[1]))
    return left - 2, top - 2, right + 2, bottom + 2


def _percentiles(section: Section, who: dict[str, Row]) -> list[Row]:
    rows = []
    for run in quants(section):
        measured = (run["kld_median"], run["kld"], run["kld_p99"], run["kld_p999"])
        values = [None if one is None else one["value"] for one in measured]
        for of, value in zip(PERCENTILES, [*values, run["kld_max"]], strict=True):
            if value:
                rows.append(who[run["id"]] | {"of": of, "value": value, "said": kld_words(value)})
    return rows


def _cut(name: str) -> str:
    """A long name, without its middle: names differ in their ends."""
    if len(name) <= _LONGEST:
        return name
    half = _LONGEST // 2
    return f"{name[: half - 1]}…{name[-half:]}"
