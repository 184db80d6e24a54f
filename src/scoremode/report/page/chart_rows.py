"""The rows that charts are drawn of, joined of the report's data and of who each run is in the charts.

Lines stay arrays (`x`, `y`, …) in a row a run, which the charts' specs flatten. The page's script joins
lines itself, of the report's data that the page holds, so that a page holds each number once.
"""

from collections.abc import Sequence
from typing import Any

from scoremode.report.page.axes import Axis, logarithmic, share, signed
from scoremode.report.page.charts import PERCENTILES
from scoremode.report.page.definition import Run, Section
from scoremode.report.page.drawn import Frontier
from scoremode.report.page.labels import placed
from scoremode.report.page.theme import TINTS
from scoremode.report.page.wording import (
    bits_words,
    interval_words,
    kld_words,
    ratio_words,
    size_unit,
    size_words,
)

__all__ = [
    "Row",
    "axis_of",
    "frontier_rows",
    "identities",
    "lines",
    "own_rows",
    "quants",
    "unit_of",
]

Row = dict[str, Any]
_WORDS = {"kld": kld_words, "kld_p999": kld_words, "ppl_ratio": ratio_words}
# Pixels of the plane in a wide chart and a narrow one, for where names stand.
_ROOMS = {"wide": (430.0, 265.0), "narrow": (250.0, 265.0)}
_LONGEST = 30


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


def lines(section: Section, name: str, who: dict[str, Row]) -> list[Row]:
    """The rows of `tail`, or of the chart with the id `name`: as the page's script joins them."""
    if name == "tail":
        return [who[one["run"]] | dict(one) for one in section["tail"]]
    chart = next(one for one in section["charts"] if one["id"] == name)
    return [who[one["run"]] | dict(one) for one in chart["series"]]


def unit_of(frontier: Frontier) -> tuple[float, str]:
    """What a frontier's sizes are divided by, and the unit that its axis has then."""
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
        words = _WORDS.get(of, kld_words)
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
    _place(shown, of)
    return shown


def axis_of(rows: Sequence[Row], of: str) -> Axis:
    """The axis of a frontier's y."""
    values = [row[field] for row in rows for field in ("y", "low", "high")]
    return signed(values) if of == "ppl_ratio" else logarithmic(values)


def _as_drawn(of: str, value: float | None) -> float | None:
    if value is None:
        return None
    if of == "ppl_ratio":
        return float(f"{100 * (value - 1):.7g}")
    return value if value > 0 else None


def _place(rows: list[Row], of: str) -> None:
    """Adds where each run's name stands, in a wide chart and in a narrow one."""
    if not rows:
        return
    # On the frontier first: their names are looked for.
    order = sorted(rows, key=lambda row: not row["ahead"])
    xs, axis = [row["x"] for row in rows], axis_of(rows, of)
    for room, (width, height) in _ROOMS.items():
        points = [
            (
                14 + _share(row["x"], xs) * (width - 28),
                10 + (1 - share(axis, row["y"])) * (height - 20),
            )
            for row in order
        ]
        ahead = [row["ahead"] for row in order]
        names = [row["short"] for row in order]
        for row, place in zip(order, placed(points, names, width, height, ahead), strict=True):
            row[room] = place


def _share(value: float, values: Sequence[float]) -> float:
    low, high = min(values), max(values)
    return (value - low) / (high - low) if high > low else 0.5


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
