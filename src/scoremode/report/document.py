"""The content of a report as data: facts, tables and prose, in the order in which they are shown.

One `Document` gives every form (`report.rendering`): a terminal's, Markdown, CSV. A table's cells are
values, so that each form rounds and escapes them in its own way, or not at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scoremode.errors import escaped
from scoremode.results.metrics import METRIC, MetricSpec, Shown
from scoremode.results.record.section import Metric, decode

# Characters of a file's text that stand in a line.
_WIDEST = 100
# The importance from which on a column is shown on any terminal; the heading of an interval, which
# belongs to the column before.
KEPT, INTERVAL = 8, "95 %"
# The heading of the bits that formats are named by; embeddings and head, which a file's bits have in
# them, are left out.
LAYER_BITS = "bits/weight, layers"


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
    - `importance`: on a terminal too narrow for all columns those of most are shown; one of `KEPT` or
      more always is, as the first column is. An interval has less than its number.
    """

    head: str | None
    key: str | None
    show: Callable[[Any], str] = str
    parts: Callable[[Any], Sequence[Any]] = field(default=lambda value: (value,))
    ends: tuple[str, ...] = ("",)
    importance: int = 5

    def said(self, value: Any, nothing: str) -> str:
        """A cell's text, not yet escaped; `nothing`: of a value that isn't there."""
        if isinstance(value, Said):
            return value.word
        return nothing if value is None else self.show(value)


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
    """Names and a line on each; an empty name continues the one before.

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
class Verdict:
    """The result in words, a line; `holds`: whether what was demanded of it does, None without such."""

    text: str
    holds: bool | None = None


@dataclass(frozen=True)
class Document:
    """The parts that are shown, and `data`, the one table that CSV has.

    Where `data` is none of the parts, Markdown begins with those of its columns that have a heading.
    A terminal begins with the `verdict`, and shows no part that only repeats it.
    """

    parts: tuple[Facts | Table | Prose | Preformatted, ...]
    data: Table
    verdict: Verdict | None = None

    @property
    def below(self) -> tuple[Facts | Table | Prose | Preformatted, ...]:
        """The parts that stand below the verdict."""
        own = self.verdict and Prose(self.verdict.text)
        return tuple(part for part in self.parts if part != own)


def words(head: str | None, key: str | None, importance: int = 5) -> Column:
    """A column of text that a file may hold."""
    return Column(head, key, printable, importance=importance)


def number(head: str, key: str | None, form: str, importance: int = 5) -> Column:
    """A column of numbers."""
    return Column(head, key, lambda value: f"{value:{form}}", importance=importance)


def measured(head: str, key: str, form: str, sign: str = "", importance: int = 5) -> Column:
    """A column of metrics: the value with `sign` before it; in data with both ends of the interval."""
    return Column(
        head,
        key,
        lambda metric: f"{sign}{metric.value:{form}}",
        lambda metric: (metric.value, *(metric.ci95 or (None, None))),
        ("", "_low", "_high"),
        importance,
    )


def interval(form: str, head: str = INTERVAL, importance: int = 2) -> Column:
    """A column of the intervals of metrics that another column has: (low, high), or None."""
    return Column(
        head,
        None,
        lambda ends: f"[{ends[0]:{form}}, {ends[1]:{form}}]",
        importance=importance,
    )


def metric_columns(metric: MetricSpec, own: Shown) -> tuple[Column, ...]:
    """The columns of a metric in one place: its number, in data with both ends of the interval, and the
    interval where the place has it. Their cells are the metric's value and its interval."""
    value = measured(own.heading, metric.data_key, own.form, metric.sign, metric.importance)
    # Of a number that is always shown an interval is worth more than another metric.
    ends = interval(own.ends, importance=metric.importance - 3)
    if metric.kind == "rate":
        value = replace(value, show=lambda m: rate(m.value))
        ends = replace(ends, show=lambda ends: f"[{rate(ends[0])}, {rate(ends[1])}]")
    return (value, ends) if own.interval else (value,)


def metric_words(name: str, found: Metric) -> str:
    """A metric in a sentence, in the form of its columns: `KLD 0.0123 nats [0.0119, 0.0127]`."""
    metric = METRIC[name]
    head = metric.heading.removesuffix(f" ({metric.unit})")
    said = " ".join(filter(None, (head, f"{metric.sign}{found.value:{metric.form}}", metric.unit)))
    return said if found.ci95 is None else f"{said} {ends(found, metric.form)}"


def rate(share: float) -> str:
    """A share as so many in 10,000; one that is not 0 is not shown as 0."""
    among = share * 10_000
    return f"{among:,.1f}" if among >= 0.1 else f"{among:.1g}"


def size(values: Iterable[float | None], key: str = "size_gib") -> Column:
    """A column of GiB, shown in MiB where all of `values` are small."""
    if max((value for value in values if value is not None), default=1.0) < 0.1:
        return Column("MiB", key, lambda gib: f"{gib * 1024:.2f}", importance=6)
    return Column("GiB", key, lambda gib: f"{gib:.3f}", importance=6)


def data(key: str) -> Column:
    """A column that only data have."""
    return Column(None, key)


def metric_of(found: Any) -> Metric | None:
    """A metric as plain JSON has it, None where there is none. An estimate of a run that isn't done has
    a value and an interval alone."""
    return None if found is None else decode({"n": 0, "note": None} | found, Metric)


def cell_of(found: Any) -> Any:
    """A value in a line of findings: a metric where it is one."""
    return metric_of(found) if isinstance(found, dict) else found


def interval_text(metric: Metric, form: str = ".4f") -> str:
    """The 95 % interval of a metric; why there is none, a table says once."""
    return "(no interval)" if metric.ci95 is None else f"95 % {ends(metric, form)}"


def ends(metric: Metric | None, form: str) -> str:
    """The 95 % interval of a metric as `[low, high]`; `-` without one, and without the metric."""
    if metric is None or metric.ci95 is None:
        return "-"
    low, high = metric.ci95
    return f"[{low:{form}}, {high:{form}}]"


def without_interval(metrics: Iterable[Metric]) -> list[tuple[str, str]]:
    """Rows on why metrics have no interval, one for all of the same reason."""
    notes = {m.note for m in metrics if m.ci95 is None and m.note}
    return [("no interval", note) for note in sorted(notes)]


def counted(n: int, what: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def printable(text: str) -> str:
    """Makes a file's text fit to be a line's part: escaped, and cut where it is long."""
    return escaped(text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…")
