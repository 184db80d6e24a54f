"""The kinds of charts as Vega-Lite specs, drawn by the page in the browser and into files as plots.

A spec names its data set and has none; figures.py says what the rows of each are. Parameters: `picked`
is the id of the run that a reader points at, or null; `room` is `wide`, `narrow` or `file`, for the
places of names.

vl-convert-python, of the Vega project itself, carries the scripts of the page and the renderer of
files: no node, and nothing is fetched.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import UsageError
from scoremode.report.page.definition import Axis, Chart
from scoremode.report.page.style import SHAPES, TINTS

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_LIT = "picked == null || datum.id == picked"
_OPACITY = {"condition": {"test": _LIT, "value": 1}, "value": 0.13}
_RULE_OPACITY = {"condition": {"test": _LIT, "value": 0.75}, "value": 0.08}
# What a row says of where its name stands, in the room that there is.
_PLACE = {key: {"expr": f"datum[room].{key}"} for key in ("dx", "dy", "align")}
_INTERVAL = "' [' + format(datum.lower, '.3~g') + ', ' + format(datum.upper, '.3~g') + ']'"
# A number of a line with its interval, in words.
_SAID = {
    "calculate": f"format(datum.y, '.3~g') + (isValid(datum.lower) ? {_INTERVAL} : '')",
    "as": "said",
}
# What a step of a ladder is compared with, in the order of a row's values.
RUNGS = ("the base in float32", "the step before")
# Marks of a run's row in the chart of percentiles.
PERCENTILES = ("median", "mean", "99 %", "99.9 %", "largest")
_PERCENTILE_SHAPES = ("square", "circle", "triangle-right", "diamond", "cross")
# Pixels between a chart's edges and its outermost points.
X_PADDING, Y_PADDING = 16, 10
SCATTER_HEIGHT = 310
# Below it, in percent, a scale of both signs is linear.
SYMLOG = 0.1
# Pixels from a point to its name, and how that is aligned there, in the order in which they are tried:
# beside the point, and then further off, with a line that leads there.
Place = tuple[int, int, Literal["left", "right", "center"]]
_BESIDE: tuple[Place, ...] = (
    *((8, 0, "left"), (-8, 0, "right"), (7, -10, "left"), (-7, -10, "right")),
    *((7, 10, "left"), (-7, 10, "right"), (0, -14, "center"), (0, 14, "center")),
)
_OFF: tuple[Place, ...] = tuple(
    (
        round(x),
        round(radius * math.sin(turn)),
        "center" if abs(x) < 9 else "left" if x > 0 else "right",
    )
    for radius in (24, 36, 50, 66, 84)
    for turn in (i * math.pi / 8 for i in range(16))
    for x in (radius * math.cos(turn),)
)
# The share of a line to a name that may lie on another line.
_ALONG = 0.4
_HEIGHT = 13.0
_DOT = 5.0
# Of the height of Liberation Sans, about which other letters are.
_NARROW, _SLIM, _BROAD = "ijl.,:;'|! ", "tfrI-()[]/", "mMW@%…"
_LETTERS_HIGH = 11.0
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
        # From the first size to the last: names are placed by that.
        "scale": {"zero": False, "nice": False, "padding": X_PADDING},
        "axis": {"format": ",~r", "tickCount": 7},
    }
    y = quantity("y", y_title, axis)
    tooltip = [_told("name"), _told(x_title, "size"), _told(y_title, "said"), _told("", "standing")]
    whisker = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    layers: list[Spec] = [
        _leader(x, y),
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
        *_names(x, y),
    ]
    if axis.kind == "symlog":
        rule = {"type": "rule", "style": "zero"}
        layers.insert(0, {"mark": rule, "encoding": {"y": {"datum": 0, "type": "quantitative"}}})
    if base is not None:
        layers += _base(x, base)
    return _chart(layers, data, height=SCATTER_HEIGHT)


def percentiles(axis: "Scale", runs: int) -> Spec:
    """A row a run, in the order of the ranking: its median and mean, and its worst tokens."""
    x = quantity("value", "KLD (nats)", axis)
    domain = list(PERCENTILES)
    y = {
        "field": "short",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 220, "grid": True, "ticks": False, "domain": False},
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
    # A logarithmic axis has no 0.
    above = " && datum.y > 0" if y["scale"]["type"] == "log" else ""
    drawable = {"filter": f"isValid(datum.y){above}"}
    return _chart(layers, data, height=290) | {"transform": [flat, drawable, _SAID]}


def curves(chart: Chart) -> Spec:
    """A chart's series as lines, on the axes that it names."""
    x, y = chart["x"], chart["y"]
    across = [v for one in chart["series"] for v in one["x"]]
    up = [v for one in chart["series"] for ends in ("y", "lower", "upper") for v in one[ends]]  # type: ignore[literal-required]
    horizontal = logarithmic(across) if x["scale"] == "log" else linear()
    return lines(
        chart["id"],
        quantity("x", _titled(x), horizontal),
        quantity("y", _titled(y), _vertical(y, up)),
        marked=all(len(one["x"]) <= 16 for one in chart["series"]),
    )


def rungs(chart: Chart) -> Spec:
    """Two marks a run at its place on the axis, of a chart with two values a run: filled against the
    first of all, hollow against the one before. Those of one kind are joined where each place has one
    run."""
    names = [b["name"] for b in chart["bins"] or ()]
    places = [one["x"][0] for one in chart["series"]]
    up = [v for one in chart["series"] for ends in ("y", "lower", "upper") for v in one[ends]]  # type: ignore[literal-required]
    axis: Spec = {
        "values": list(range(len(names))),
        "labelExpr": f"{json.dumps(names)}[datum.value]",
        "labelAngle": -30,
        "labelOverlap": False,
        "grid": False,
    }
    scale = {"domain": [-0.3, len(names) - 0.7], "nice": False, "zero": False}
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": _titled(chart["x"]),
        "scale": scale,
        "axis": axis,
    }
    y = quantity("y", _titled(chart["y"]), logarithmic(up))
    ends = {"x": x, "y": y | {"field": "lower"}, "y2": {"field": "upper"}}
    drawn = {"color": _tint(), "opacity": _OPACITY}
    tooltip = [_told("name"), _told("against", "of"), _told(y["title"], "said")]
    layers: list[Spec] = [
        {
            "transform": [{"filter": "isValid(datum.lower) && datum.lower > 0"}],
            "mark": {"type": "rule", "strokeWidth": 1.1},
            "encoding": {**ends, **drawn, "opacity": _RULE_OPACITY},
        }
    ]
    for of, mark in zip(
        RUNGS, ({"filled": True}, {"filled": False, "strokeWidth": 1.8}), strict=True
    ):
        only = [{"filter": f"datum.of == {json.dumps(of)}"}]
        marked = {"x": x, "y": y, **drawn, "tooltip": tooltip}
        layers.append(
            {"transform": only, "mark": {"type": "point", "size": 64, **mark}, "encoding": marked}
        )
        if len(set(places)) == len(places):
            line = {
                "type": "line",
                "style": "leader",
                "strokeDash": [1, 0] if of == RUNGS[0] else [4, 3],
            }
            joined = {"x": x, "y": y, "order": {"field": "x"}}
            layers.insert(0, {"transform": only, "mark": line, "encoding": joined})
    return _chart(layers, chart["id"], height=290) | {
        "transform": [
            {"flatten": ["x", "y", "lower", "upper", "n"]},
            {"window": [{"op": "row_number", "as": "row"}], "groupby": ["id"]},
            {"calculate": f"{json.dumps(list(RUNGS))}[datum.row - 1]", "as": "of"},
            {"filter": "isValid(datum.y) && datum.y > 0"},
            _SAID,
        ]
    }


def _vertical(axis: Axis, values: list[float | None]) -> "Scale":
    """Logarithmic also where runs are so far apart that a linear axis would lay most of them on 0;
    never where the range is fixed."""
    if axis["most"] is not None:
        return linear(axis["least"], axis["most"])
    known = [value for value in values if value is not None and value > 0]
    apart = bool(known) and max(known) > 10 * min(known)
    return logarithmic(values) if axis["scale"] == "log" or apart else linear()


def _titled(axis: Axis) -> str:
    return f"{axis['label']} ({axis['unit']})" if axis["unit"] else axis["label"]


def _names(x: Spec, y: Spec) -> list[Spec]:
    """Names where their rows say; below each its outline in the paper's color, so that no line goes
    through its letters."""
    text = {
        "transform": [{"filter": "datum[room]"}],
        "encoding": {"x": x, "y": y, "text": {"field": "short"}, "opacity": _OPACITY},
    }
    mark = {"type": "text", "baseline": "middle", **_PLACE}
    return [text | {"mark": mark | {"style": "outline", "aria": False}}, text | {"mark": mark}]


def _leader(x: Spec, y: Spec) -> Spec:
    """Lines from points to those names that stand further off."""
    ends = {f"{axis}2Offset": {"expr": f"datum[room].d{axis} * 0.92"} for axis in "xy"}
    there = {"x": x, "y": y, "x2": {"field": "x"}, "y2": {"field": "y"}, "opacity": _RULE_OPACITY}
    return {
        "transform": [{"filter": "datum[room] && datum[room].led"}],
        "mark": {"type": "rule", "style": "leader", **ends},
        "encoding": there,
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
    scale: Spec = {"type": axis.kind, "nice": False, "padding": Y_PADDING}
    if axis.kind == "linear":
        scale["zero"] = False
        if axis.low is not None and axis.high is not None:
            scale["domain"] = [axis.low, axis.high]
    if axis.kind == "symlog":
        scale["constant"] = SYMLOG
    form = "~g" if axis.kind == "log" else ",~r"
    drawn: Spec = {"format": form, "values": list(axis.ticks)} if axis.ticks else {"tickCount": 7}
    if axis.kind == "symlog":
        # Drawn by what a ratio is above 1, and read as the ratio.
        drawn["labelExpr"] = "'×' + format(1 + datum.value / 100, ',.9~r')"
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


def linear(low: float | None = None, high: float | None = None) -> Scale:
    """A linear scale with ticks where Vega puts them; from `low` to `high` where both are given."""
    return Scale("linear", (), low, high)


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
    lines: Sequence[Box] = (),
) -> list[Spec | None]:
    """For each point of a chart, in pixels, where its name stands: `dx`, `dy`, `align`, and whether it
    is `led` to by a line; None for want of room. The points before others have the first choice.

    No name covers another one, a point or a line to a name, or lies on one of `lines` (a segment along
    an axis each) as long as there is any other place for it.
    """
    dots = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in points]
    places = np.array([place[:2] for place in _BESIDE + _OFF], np.float64)
    is_led = np.arange(len(places)) >= len(_BESIDE)
    # From behind the point's own mark, which another one may cover, to the name.
    begin = np.minimum(2 * _DOT / np.hypot(*places.T), 0.92)
    steps = np.linspace(begin, 0.92, 12, axis=1)[..., None]
    taken: list[Box] = []
    led: list[Box] = []
    result: list[Spec | None] = []
    for i, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        boxes = np.array([_box(place, x, y, length_of(name)) for place in _BESIDE + _OFF])
        inside = (boxes[:, 0] >= 0) & (boxes[:, 2] <= width)
        inside &= (boxes[:, 1] >= 0) & (boxes[:, 3] <= height)
        others = dots[:i] + dots[i + 1 :]
        free = inside & ~_meet(boxes, [*taken, *dots, *led])
        # The line to a name goes beside all that it could be taken for.
        way = np.array([x, y]) + places[:, None] * steps
        on_way = np.concatenate([way, way], axis=2).reshape(-1, 4)
        met = _meet(on_way, [*taken, *others]).reshape(len(places), -1)
        along = _meet(on_way, lines).reshape(len(places), -1).mean(axis=1) > _ALONG
        free &= ~(is_led & met.any(axis=1))
        if not free.any():
            result.append(None)
            continue
        # A name's outline covers a line, so that on one is better than nowhere.
        clear = free & ~_meet(boxes, lines) & ~(is_led & along)
        at = int(np.argmax(clear if clear.any() else free))
        dx, dy, align = (_BESIDE + _OFF)[at]
        taken.append(tuple(boxes[at]))
        if is_led[at]:
            led += [(a - 1, b - 1, a + 1, b + 1) for a, b in way[at]]
        result.append({"dx": dx, "dy": dy, "align": align, "led": bool(is_led[at])})
    return result


def length_of(name: str) -> float:
    """About how many pixels a name is long."""
    kinds = ((_NARROW, 0.27), (_SLIM, 0.33), (_BROAD, 0.92))
    parts = (
        next((part for letters, part in kinds if letter in letters), None)
        or (0.57 if letter.isascii() and not letter.isupper() else 0.72 if letter.isascii() else 1)
        for letter in name
    )
    return _LETTERS_HIGH * sum(parts)


def _box(place: Place, x: float, y: float, length: float) -> Box:
    dx, dy, align = place
    left = x + dx - {"left": 0.0, "center": length / 2, "right": length}[align]
    return left, y + dy - _HEIGHT / 2, left + length, y + dy + _HEIGHT / 2


def _meet(boxes: NDArray[np.float64], others: Sequence[Box]) -> NDArray[np.bool_]:
    """Tells which of `boxes` [n, 4] overlap any of `others`."""
    if not others:
        return np.zeros(len(boxes), np.bool_)
    a, b = boxes[:, None], np.array(others)
    apart = (a[..., 0] >= b[:, 2]) | (a[..., 2] <= b[:, 0])
    apart |= (a[..., 1] >= b[:, 3]) | (a[..., 3] <= b[:, 1])
    return np.asarray(~apart.all(axis=1))


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
