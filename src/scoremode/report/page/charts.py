"""The report's charts as Vega-Lite specs: drawn by the page in the browser, and into files as plots.

A spec names its data set and has none; chart_rows.py says what the rows of each are. Parameters:
`picked` is the id of the run that a reader points at, or null; `room` is `wide` or `narrow`, for the
places of names.
"""

from typing import TYPE_CHECKING, Any

from scoremode.report.page.axes import SYMLOG
from scoremode.report.page.labels import PLACES
from scoremode.report.page.theme import SHAPES, TINTS

if TYPE_CHECKING:
    from scoremode.report.page.axes import Axis

__all__ = ["PERCENTILES", "Chart", "lines", "percentiles", "quantity", "scatter"]

Chart = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_LIT = "picked == null || datum.id == picked"
_OPACITY = {"condition": {"test": _LIT, "value": 1}, "value": 0.13}
_RULE_OPACITY = {"condition": {"test": _LIT, "value": 0.75}, "value": 0.08}
# Where a name stands, as Vega-Lite places text: its alignment, its baseline, and how far off.
_ASIDE: dict[str, Chart] = {
    "right": {"align": "left", "baseline": "middle", "dx": 8},
    "left": {"align": "right", "baseline": "middle", "dx": -8},
    "top": {"align": "center", "baseline": "bottom", "dy": -8},
    "bottom": {"align": "center", "baseline": "top", "dy": 8},
}
# Marks of a run's row in the chart of percentiles.
PERCENTILES = ("median", "mean", "99 %", "99.9 %", "largest")
_PERCENTILE_SHAPES = ("square", "circle", "triangle-right", "diamond", "cross")


def scatter(data: str, x_title: str, y_title: str, axis: "Axis", base: float | None) -> Chart:
    """Size against a metric: intervals, the frontier in steps, names beside their points.

    `base`: the base's size where that is near enough to be shown, as a line.
    """
    x: Chart = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"zero": False, "padding": 16},
        "axis": {"format": ",~r", "tickCount": 7},
    }
    y = quantity("y", y_title, axis)
    tooltip = [_told("name"), _told(x_title, "size"), _told(y_title, "said"), _told("", "standing")]
    whisker = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    layers: list[Chart] = [
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


def percentiles(axis: "Axis", runs: int) -> Chart:
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


def lines(data: str, x: Chart, y: Chart, *, marked: bool) -> Chart:
    """A line a run, with its intervals. `marked`: each point of a line is, too."""
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
    layers: list[Chart] = [
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


def _names(x: Chart, y: Chart, place: str) -> Chart:
    return {
        "transform": [{"filter": f"datum[room] == '{place}'"}],
        "mark": {"type": "text", **_ASIDE[place]},
        "encoding": {"x": x, "y": y, "text": {"field": "short"}, "opacity": _OPACITY},
    }


def _base(x: Chart, size: float) -> list[Chart]:
    """Where the base's size is: it has no distance from itself."""
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


def _chart(layers: list[Chart], data: str, *, height: int | None) -> Chart:
    chart: Chart = {
        "$schema": _SCHEMA,
        "data": {"name": data},
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "params": [{"name": "picked", "value": None}, {"name": "room", "value": "wide"}],
        "layer": layers,
    }
    return chart if height is None else chart | {"height": height}


def quantity(field: str, title: str, axis: "Axis") -> Chart:
    """An encoding of numbers on that axis."""
    scale: Chart = {"type": axis.kind, "nice": False, "padding": 10}
    if axis.kind == "linear":
        scale["zero"] = False
    if axis.kind == "symlog":
        scale["constant"] = SYMLOG
    form = "~g" if axis.kind == "log" else ",~r"
    drawn: Chart = {"format": form, "values": list(axis.ticks)} if axis.ticks else {"tickCount": 7}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": drawn}


def _tint() -> Chart:
    domain = list(range(len(TINTS)))
    return {"field": "tint", "type": "nominal", "scale": {"domain": domain}, "legend": None}


def _shape() -> Chart:
    scale = {"domain": list(range(len(TINTS))), "range": list(SHAPES)}
    return {"field": "tint", "type": "nominal", "scale": scale, "legend": None}


def _told(title: str, field: str = "name") -> Chart:
    """A line of a tooltip; the one titled `name` stands above the others."""
    return {"field": field, "type": "nominal", "title": title}
