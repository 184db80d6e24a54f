"""The kinds of charts as Vega-Lite specs, drawn by the page in the browser and into files as plots.

A spec names its data set and has none; figures.py says what the rows of each are. Parameters: `picked`
is the id of the run that a reader points at, or null; `room` is `wide` or `narrow`, for the places of
names.

vl-convert-python, of the Vega project itself, carries the scripts of the page and the renderer of
files: no node, and nothing is fetched.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from scoremode.errors import UsageError
from scoremode.report.page.style import SHAPES, TINTS

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_LIT = "picked == null || datum.id == picked"
_OPACITY = {"condition": {"test": _LIT, "value": 1}, "value": 0.13}
_RULE_OPACITY = {"condition": {"test": _LIT, "value": 0.75}, "value": 0.08}
# Where a name stands, as Vega-Lite places text: its alignment, its baseline, and how far off.
_ASIDE: dict[str, Spec] = {
    "right": {"align": "left", "baseline": "middle", "dx": 8},
    "left": {"align": "right", "baseline": "middle", "dx": -8},
    "top": {"align": "center", "baseline": "bottom", "dy": -8},
    "bottom": {"align": "center", "baseline": "top", "dy": 8},
}
# Marks of a run's row in the chart of percentiles.
PERCENTILES = ("median", "mean", "99 %", "99.9 %", "largest")
_PERCENTILE_SHAPES = ("square", "circle", "triangle-right", "diamond", "cross")
# Below it, in percent, a scale of both signs is linear.
SYMLOG = 0.1
# Tried in this order: what a reader finds first.
PLACES = ("right", "left", "top", "bottom")
_LEFT_FIRST = ("left", "top", "right", "bottom")
_LETTER = 6.2
_HEIGHT = 13.0
_GAP = 8.0
_DOT = 5.0
Box = tuple[float, float, float, float]
EXTRA = "pip install 'scoremode[report]'"


def scatter(data: str, x_title: str, y_title: str, axis: "Scale", base: float | None) -> Spec:
    """Size against a metric: intervals, the frontier in steps, names beside their points.

    `base`: the base's size where that is near enough to be shown, as a line.
    """
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"zero": False, "padding": 16},
        "axis": {"format": ",~r", "tickCount": 7},
    }
    y = quantity("y", y_title, axis)
    tooltip = [_told("name"), _told(x_title, "size"), _told(y_title, "said"), _told("", "standing")]
    whisker = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    layers: list[Spec] = [
        {
            "transform": [{"filter": "datum.ahead"}],
            "mark": {"type": "line", "interpolate": "step-after", "style": "frontier"},
            "encoding": {"x": x, "y": y, "order": {"field": "x"}},
        },
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 1.4},
            "encoding": {**whisker, "color": _tint(), "opacity": _RULE_OPACITY},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 64},
            "encoding": {
                **{"x": x, "y": y, "color": _tint(), "shape": _shape()},
                **{"opacity": _OPACITY, "tooltip": tooltip},
            },
        },
        *(_names(x, y, place) for place in PLACES),
    ]
    if axis.kind == "symlog":
        rule = {"type": "rule", "style": "zero"}
        layers.insert(0, {"mark": rule, "encoding": {"y": {"datum": 0, "type": "quantitative"}}})
    if base is not None:
        layers += _base(x, base)
    return _chart(layers, data, height=310)


def percentiles(axis: "Scale", runs: int) -> Spec:
    """A row a run, in the order of the ranking: its median and mean, and its worst tokens."""
    x = quantity("value", "KLD (nats)", axis)
    domain = list(PERCENTILES)
    y = {
        "field": "short",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 150, "grid": True, "ticks": False, "domain": False},
    }
    of = {"field": "of", "type": "nominal", "title": None}
    mark = {
        "mark": {"type": "point", "filled": True, "size": 48},
        "encoding": {
            "x": x,
            "y": y,
            "color": _tint(),
            "opacity": _OPACITY,
            "shape": of
            | {
                "scale": {"domain": domain, "range": list(_PERCENTILE_SHAPES)},
                "legend": {"orient": "top", "columns": 3, "symbolFillColor": "gray"},
            },
            "tooltip": [_told("name"), _told("of the KLDs", "of"), _told("KLD (nats)", "said")],
        },
    }
    return _chart([mark], "percentiles", height=21 * runs + 20)


def lines(data: str, x: Spec, y: Spec, *, marked: bool) -> Spec:
    """A line for each run, with its intervals. `marked`: whether each point has a mark."""
    run = {"field": "id", "type": "nominal"}
    drawn = {"color": _tint(), "opacity": _OPACITY, "detail": run}
    ends = {"x": x, "y": y | {"field": "lower"}, "y2": {"field": "upper"}}
    # Of a curve with many points some are marked, so that lines differ in more than their colour.
    some = [] if marked else [{"window": [{"op": "row_number", "as": "row"}], "groupby": ["id"]},
                              {"filter": "datum.row % 8 == 4"}]  # fmt: skip
    whole = "' [' + format(datum.lower, '.3~g') + ', ' + format(datum.upper, '.3~g') + ']'"
    told = {
        "calculate": f"format(datum.y, '.3~g') + (isValid(datum.lower) ? {whole} : '')",
        "as": "said",
    }
    tooltip = [
        _told("name"),
        {"field": "x", "type": "quantitative", "title": x["title"], "format": ".3~g"},
        _told(y["title"], "said"),
        {"field": "n", "type": "quantitative", "title": "tokens", "format": ","},
    ]
    hover = {"type": "point", "filled": True, "size": 170, "opacity": 0}
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.6, "strokeJoin": "round"},
            "encoding": {"x": x, "y": y, **drawn},
        },
        {
            "transform": [{"filter": "isValid(datum.lower) && datum.lower > 0"}],
            "mark": {"type": "rule", "strokeWidth": 1.1},
            "encoding": {**ends, **drawn, "opacity": _RULE_OPACITY},
        },
        {
            "transform": some,
            "mark": {"type": "point", "filled": True, "size": 38},
            "encoding": {"x": x, "y": y, "shape": _shape(), **drawn},
        },
        # Larger than what is seen, so that a finger finds it.
        {"mark": hover, "encoding": {"x": x, "y": y, "detail": run, "tooltip": tooltip}},
    ]
    flat = {"flatten": ["x", "y", "lower", "upper", "n"]}
    drawable = {"filter": "isValid(datum.y) && datum.y > 0"}
    return _chart(layers, data, height=290) | {"transform": [flat, drawable, told]}


def _names(x: Spec, y: Spec, place: str) -> Spec:
    return {
        "transform": [{"filter": f"datum[room] == '{place}'"}],
        "mark": {"type": "text", **_ASIDE[place]},
        "encoding": {"x": x, "y": y, "text": {"field": "short"}, "opacity": _OPACITY},
    }


def _base(x: Spec, size: float) -> list[Spec]:
    """A line at the base's size: it has no distance from itself."""
    data = {"values": [{"x": size, "words": "base"}]}
    text = {
        "type": "text",
        "style": "aside",
        "align": "right",
        "baseline": "top",
        "dx": -5,
        "dy": 2,
    }
    name = {"x": x, "y": {"value": 0}, "text": {"field": "words"}}
    return [
        {"data": data, "mark": {"type": "rule", "style": "base"}, "encoding": {"x": x}},
        {"data": data, "mark": text, "encoding": name},
    ]


def _chart(layers: list[Spec], data: str, *, height: int | None) -> Spec:
    chart: Spec = {
        "$schema": _SCHEMA,
        "data": {"name": data},
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "params": [{"name": "picked", "value": None}, {"name": "room", "value": "wide"}],
        "layer": layers,
    }
    return chart if height is None else chart | {"height": height}


def quantity(field: str, title: str, axis: "Scale") -> Spec:
    """An encoding of numbers on that axis."""
    scale: Spec = {"type": axis.kind, "nice": False, "padding": 10}
    if axis.kind == "linear":
        scale["zero"] = False
    if axis.kind == "symlog":
        scale["constant"] = SYMLOG
    form = "~g" if axis.kind == "log" else ",~r"
    drawn: Spec = {"format": form, "values": list(axis.ticks)} if axis.ticks else {"tickCount": 7}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": drawn}


def _tint() -> Spec:
    domain = list(range(len(TINTS)))
    return {"field": "tint", "type": "nominal", "scale": {"domain": domain}, "legend": None}


def _shape() -> Spec:
    scale = {"domain": list(range(len(TINTS))), "range": list(SHAPES)}
    return {"field": "tint", "type": "nominal", "scale": scale, "legend": None}


def _told(title: str, field: str = "name") -> Spec:
    """A line of a tooltip; the one titled `name` stands above the others."""
    return {"field": field, "type": "nominal", "title": title}


@dataclass(frozen=True)
class Scale:
    """A scale and its `ticks`, where they are not left to Vega; `low` and `high` are the ends of
    what it shows, None without anything."""

    kind: Literal["linear", "log", "symlog"]
    ticks: tuple[float, ...]
    low: float | None
    high: float | None


def linear() -> Scale:
    """A linear scale with ticks where Vega puts them."""
    return Scale("linear", (), None, None)


def logarithmic(values: Iterable[float | None]) -> Scale:
    """A scale for values above 0: ticks at powers of ten; at 1, 2 and 5 of them over few decades."""
    found = [value for value in values if value is not None and value > 0]
    if not found:
        return Scale("log", (), None, None)
    low, high = min(found), max(found)
    decades = math.log10(high / low)
    steps = (
        (1,) if decades >= 2 else (1, 2, 5) if decades > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    )
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = max(1, math.ceil(decades / 8))
    # The padding beyond the ends shows about a tenth more.
    room = 10 ** (decades * 0.05)
    ticks = [float(f"{step}e{power}") for power in powers if power % every == 0 for step in steps]
    return Scale("log", tuple(t for t in ticks if low / room <= t <= high * room), low, high)


def signed(values: Iterable[float | None]) -> Scale:
    """A scale for percents of both signs: linear near 0, logarithmic further off."""
    found = [value for value in values if value is not None]
    if not found:
        return Scale("symlog", (), None, None)
    low, high = min(*found, 0.0), max(*found, 0.0)
    largest = max(-low, high)
    sizes = [SYMLOG * 10**power for power in range(0, 12) if SYMLOG * 10**power <= largest * 1.3]
    if largest < 3 * SYMLOG:
        sizes = [largest / 2, largest]
        sizes = [float(f"{size:.1g}") for size in sizes if size]
    ticks = [0.0, *sizes, *(-size for size in sizes)]
    inside = sorted({float(f"{t:.6g}") for t in ticks if low * 1.3 <= t <= high * 1.3})
    return Scale("symlog", tuple(inside), low, high)


def share(axis: Scale, value: float) -> float:
    """The place of `value` on the axis, from 0 at its low end to 1 at its high one."""
    if axis.low is None or axis.high is None or axis.low == axis.high:
        return 0.5
    low, at, high = (_scaled(axis, v) for v in (axis.low, value, axis.high))
    return (at - low) / (high - low)


def _scaled(axis: Scale, value: float) -> float:
    if axis.kind == "log":
        return math.log(value)
    return math.copysign(math.log1p(abs(value / SYMLOG)), value)


def placed(
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    width: float,
    height: float,
    left_first: Sequence[bool],
) -> list[str]:
    """For each point of a chart, in pixels: one of PLACES for its name, or `none` for want of room.

    The points before others have the first choice. `left_first`: of which points the right side is
    taken, as a frontier's steps do.
    """
    dots = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in points]
    taken: list[Box] = []
    result = []
    for i, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        others = [*taken, *dots[:i], *dots[i + 1 :]]
        for place in _LEFT_FIRST if left_first[i] else PLACES:
            box = _box(place, x, y, _LETTER * len(name))
            inside = box[0] >= 0 and box[2] <= width and box[1] >= -_HEIGHT and box[3] <= height
            if inside and not any(_overlap(box, other) for other in others):
                taken.append(box)
                result.append(place)
                break
        else:
            result.append("none")
    return result


def _box(place: str, x: float, y: float, length: float) -> Box:
    middle = _HEIGHT / 2
    if place == "right":
        return x + _GAP, y - middle, x + _GAP + length, y + middle
    if place == "left":
        return x - _GAP - length, y - middle, x - _GAP, y + middle
    top = y - _GAP - _HEIGHT if place == "top" else y + _GAP
    return x - length / 2, top, x + length / 2, top + _HEIGHT


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def plotting() -> ModuleType:
    """The module vl_convert. Raises UsageError with what to install where it is missing."""
    try:
        import vl_convert
    except ImportError as error:
        if error.name != "vl_convert":
            raise
        raise UsageError(
            f"a report needs vl-convert-python, which draws its charts: {EXTRA}"
        ) from None
    return vl_convert


def scripts() -> str:
    """JavaScript that makes `vega` and `vegaEmbed` names of the page."""
    bundle: str = plotting().javascript_bundle("window.vega = vega; window.vegaEmbed = vegaEmbed;")
    # Its own names stay its own.
    return f"(() => {{{bundle}\n}})();"


def packed(script: str) -> str:
    """A script as the page holds it: deflated, in base64. Vega takes 0.4 MB so, and 0.9 MB as it is."""
    return base64.b64encode(zlib.compress(script.encode(), 9)).decode()
