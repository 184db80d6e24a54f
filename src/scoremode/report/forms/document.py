"""What a command has to show, as data: facts, tables, words, in the order in which they are shown.

One value gives all forms: `text.py` a terminal's, `markdown.py`, `csv.py`. A table's cells are values,
so that each form rounds and escapes them in its own way, or not at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scoremode.report.layout import printable

__all__ = [
    "Column",
    "Document",
    "Facts",
    "Preformatted",
    "Prose",
    "Said",
    "Table",
    "data",
    "interval",
    "measured",
    "number",
    "size",
    "words",
]


@dataclass(frozen=True)
class Said:
    """A cell with a word in the place of a value: data have nothing there."""

    word: str


@dataclass(frozen=True)
class Column:
    """A column of a table.

    - `head`: its heading, None where only data have it.
    - `key`: its name in data, with the unit, None where only readers have it.
    - `show`: a value that is there → its text.
    - `parts`: a value that is there → what it is in data, a column each; `ends` are the ends of these
      columns' names behind `key`.
    """

    head: str | None
    key: str | None
    show: Callable[[Any], str] = str
    parts: Callable[[Any], Sequence[Any]] = field(default=lambda value: (value,))
    ends: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Table:
    """Columns and rows of as many values; None is a value that is not there."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def filled(self) -> "Table":
        """The table without the columns that have nothing to show."""
        kept = [
            i
            for i, column in enumerate(self.columns)
            if column.head is not None and any(row[i] is not None for row in self.rows)
        ]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )


@dataclass(frozen=True)
class Facts:
    """Names with what is said of them; a name that is empty goes on with the one before.

    `tabled`: names whose numbers the document's `data` have as well.
    """

    rows: tuple[tuple[str, str], ...]
    tabled: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Prose:
    """Words between the others."""

    text: str


@dataclass(frozen=True)
class Preformatted:
    """Lines as they are, such as another tool's."""

    text: str


@dataclass(frozen=True)
class Document:
    """All that is shown, and `data`: the one table that CSV is.

    Where `data` is none of the parts, Markdown begins with those of its columns that have a heading.
    """

    parts: tuple[Facts | Table | Prose | Preformatted, ...]
    data: Table


def words(head: str | None, key: str | None) -> Column:
    """A column of text that a file may hold."""
    return Column(head, key, printable)


def number(head: str, key: str | None, form: str) -> Column:
    """A column of numbers."""
    return Column(head, key, lambda value: f"{value:{form}}")


def measured(head: str, key: str, form: str, sign: str = "") -> Column:
    """A column of metrics: the value with `sign` before it; in data with both ends of the interval."""
    return Column(
        head,
        key,
        lambda metric: f"{sign}{metric['value']:{form}}",
        lambda metric: (metric["value"], *(metric["ci95"] or (None, None))),
        ("", "_low", "_high"),
    )


def interval(form: str, head: str = "95 %") -> Column:
    """A column of the intervals of metrics that another column has: (low, high), or None."""
    return Column(head, None, lambda ends: f"[{ends[0]:{form}}, {ends[1]:{form}}]")


def size(values: Iterable[float | None], key: str = "size_gib") -> Column:
    """A column of GiB, shown in MiB where all of `values` are small."""
    if max((value for value in values if value is not None), default=1.0) < 0.1:
        return Column("MiB", key, lambda gib: f"{gib * 1024:.2f}")
    return Column("GiB", key, lambda gib: f"{gib:.3f}")


def data(key: str) -> Column:
    """A column that only data have."""
    return Column(None, key)
