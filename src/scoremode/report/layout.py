"""Text of reports: names with their values, columns, intervals, and what a file holds made harmless."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scoremode.errors import escaped

__all__ = [
    "columns_table",
    "counted",
    "ends",
    "escaped",
    "interval",
    "pairs",
    "printable",
    "without_interval",
]

_WIDEST = 100


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for, a line each."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def columns_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first flush left, the others right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def interval(metric: Mapping[str, Any], form: str = ".4f") -> str:
    """The 95 % interval of a metric; why there is none, a table says once."""
    return "(no interval)" if metric["ci95"] is None else f"95 % {ends(metric, form)}"


def ends(metric: Mapping[str, Any] | None, form: str) -> str:
    """The 95 % interval of a metric as `[low, high]`; `-` without one, and without the metric."""
    if metric is None or metric["ci95"] is None:
        return "-"
    low, high = metric["ci95"]
    return f"[{low:{form}}, {high:{form}}]"


def without_interval(metrics: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Rows on why metrics have no interval, one for all of the same reason."""
    notes = {m["note"] for m in metrics if m["ci95"] is None}
    return [("no interval", note) for note in sorted(notes - {None})]


def counted(n: int, what: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def printable(text: str) -> str:
    """Makes a file's text fit to be a line's part: escaped, and cut where it is long."""
    return escaped(text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…")
