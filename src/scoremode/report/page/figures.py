"""The figures of a section: which charts there are, of which data, and what stands above them."""

from collections.abc import Iterable
from dataclasses import dataclass

from scoremode.report.page import drawn
from scoremode.report.page.axes import Axis, linear, logarithmic
from scoremode.report.page.chart_rows import Row, axis_of, quants, unit_of
from scoremode.report.page.charts import Chart, lines, percentiles, quantity, scatter
from scoremode.report.page.definition import Section
from scoremode.report.page.wording import bits_words, size_words

__all__ = ["Figure", "figures"]

_SIZES = {
    "bits_file": "bits/weight, file",
    "bits_body": "bits/weight, layers",
    "bytes": "size of the files",
}
_QUALITIES = {
    "kld": ("Size and distance from the base", "mean KLD (nats)",
            "Lower and further left is better. The dashed steps are the frontier: nothing measured "
            "here "
            "is both smaller and closer to the base. Bars are 95 % intervals."),
    "ppl_ratio": ("Size and perplexity", "PPL above the base's (%)",
                  "How much more surprising the text became. An interval that holds 0 leaves open "
                  "whether "
                  "anything was lost. The scale is linear near 0, logarithmic further off."),
    "kld_p999": ("Size and the worst token in a thousand", "99.9 % KLD (nats)",
                 "One token in a thousand is further off than this. Quants of one mean may differ "
                 "here."),
    "ppl": ("Size and perplexity", "PPL", "Lower and further left is better."),
}  # fmt: skip
_PERCENTILES = (
    "From the median to the largest KLD",
    "In the order of the ranking. A long way from the mean to the right end: mostly right, and now and "
    "then badly wrong.",
)
_TAIL = (
    "The tail of the KLD",
    "Read across: how far off the worst 1 %, 0.1 %, … of the tokens are at least. Both axes are "
    "logarithmic; the further left and the steeper, the better.",
)


@dataclass(frozen=True)
class Figure:
    """A figure: `choices` are specs of the same chart, by what a reader may choose."""

    name: str
    title: str
    caption: str
    choices: dict[str, Chart]


def figures(section: Section, own: dict[str, list[Row]]) -> list[Figure]:
    """Every figure that the section has data for. `own`: what `own_rows` made of it."""
    found = [_frontiers(section, own, quality) for quality in _QUALITIES]
    if rows := own.get("percentiles"):
        runs = len({row["id"] for row in rows})
        spec = percentiles(logarithmic(row["value"] for row in rows), runs)
        title, caption = _PERCENTILES
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
        found.append(Figure("tail", *_TAIL, {"": lines("tail", x, y, marked=False)}))
    found += [
        _curves(chart)
        for chart in section["charts"]
        if chart["kind"] == "line" and chart["x"]["scale"] != "category" and chart["id"] != "tail"
    ]
    return [figure for figure in found if figure is not None]


def _frontiers(section: Section, own: dict[str, list[Row]], quality: str) -> Figure | None:
    title, y_title, caption = _QUALITIES[quality]
    known = {one["id"]: one for one in section["frontiers"]}
    names = {run["id"]: run["name"] for run in section["runs"]}
    choices, far, zero = {}, "", []
    for size, words in _SIZES.items():
        name = f"{size}/{quality}"
        if not (rows := own.get(name)):
            continue
        shown_ids = {row["id"] for row in rows}
        zero += [names[p["run"]] for p in known[name]["points"] if p["run"] not in shown_ids]
        divisor, unit = unit_of(known[name])
        base = known[name]["base"]
        shown = None
        if base is not None and base[0] / divisor <= 1.3 * max(row["x"] for row in rows):
            shown = base[0] / divisor
        elif base is not None and not far:
            of = size_words(int(base[0])) if size == "bytes" else f"{bits_words(base[0])} {words}"
            far = f" The base itself ({of}) lies off to the right."
        x_title = f"{words} ({unit})" if unit else words
        choices[unit or words] = scatter(name, x_title, y_title, axis_of(rows, quality), shown)
    return Figure(quality, title, caption + far + _not_drawn(zero), choices) if choices else None


def _not_drawn(names: Iterable[str]) -> str:
    """What a caption says of runs whose value is 0, for which a logarithm has no place."""
    listed = ", ".join(dict.fromkeys(names))
    return f" Not drawn, since the scale has no 0: {listed}, at 0." if listed else ""


def _curves(chart: drawn.Chart) -> Figure:
    x, y = chart["x"], chart["y"]
    across = [v for one in chart["series"] for v in one["x"]]
    up = [v for one in chart["series"] for ends in ("y", "lower", "upper") for v in one[ends]]  # type: ignore[literal-required]
    horizontal = logarithmic(across) if x["scale"] == "log" else linear()
    vertical = _vertical(y, up)
    spec = lines(
        chart["id"],
        quantity("x", _titled(x), horizontal),
        quantity("y", _titled(y), vertical),
        marked=all(len(one["x"]) <= 16 for one in chart["series"]),
    )
    return Figure(chart["id"], chart["title"], chart["words"], {"": spec})


def _vertical(axis: drawn.Axis, values: list[float | None]) -> Axis:
    """Logarithmic also where runs are so far apart that a linear axis would lay most of them on 0."""
    known = [value for value in values if value is not None and value > 0]
    apart = bool(known) and max(known) > 10 * min(known)
    return logarithmic(values) if axis["scale"] == "log" or apart else linear()


def _titled(axis: drawn.Axis) -> str:
    return f"{axis['label']} ({axis['unit']})" if axis["unit"] else axis["label"]
