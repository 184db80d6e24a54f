"""Groups of targets as tables: those that `--group-by` names, and places in an assistant's turn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scoremode.errors import escaped
from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Prose,
    Table,
    data,
    measured,
    metric_columns,
    metric_of,
    number,
    words,
)
from scoremode.results.metrics import METRICS, Place, shown
from scoremode.results.record.definition import Record
from scoremode.results.record.text import Plan

KINDS = {
    "label": "group",
    "turn": "place in the turn",
    "depth": "tokens before",
    "confidence": "base's confidence",
    "position": "position in the window",
    "token_class": "kind of token",
}
# Those with all that a reader asks for; the others have KLD and PPL / base alone.
_WHOLE = ("label", "turn")
# Characters of a name, so that a table is no wider than a terminal.
_NAME, _MODEL = 18, 24

Groups = Sequence[Mapping[str, Any]]


def groups_of(record: Record) -> dict[str, list[dict[str, Any]]]:
    """The groups of each kind as plain JSON: their metrics are those of METRICS."""
    return record.document.get("breakdown") or {}


def group_counts(plan: Plan) -> list[tuple[str, str]]:
    """A row on the targets of a plan's groups, the largest first; nothing without groups."""
    labels = sorted((plan.labels or {}).items(), key=lambda group: (-group[1], group[0]))
    if not labels:
        return []
    said = ", ".join(f"{_cut(name, _NAME)} {n:,}" for name, n in labels[:8])
    return [("groups", said + (f" and {len(labels) - 8} more" if len(labels) > 8 else ""))]


def group_parts(record: Record, of: str) -> list[Table | Prose]:
    """A table of a record's groups, and below it what its readers must know; nothing without groups."""
    if not (groups := groups_of(record).get(of)):
        return []
    if "kld" not in groups[0]:
        return [_table(of, groups, "groups alone"), *_notes(groups, ("ppl",))]
    if of == "depth":
        return [_table(of, groups, "depth"), *_notes(groups, ("kld",))]
    confident = record.thresholds.confident if record.thresholds else None
    return [_table(of, groups, "groups"), *_notes(groups, ("kld",), confident)]


def further_tables(record: Record, of: str) -> list[Table | Prose]:
    """Tables with the metrics that `group_parts` leaves out of groups against a base."""
    groups = groups_of(record).get(of)
    if not groups or "kld" not in groups[0]:
        return []
    places: tuple[Place, ...] = ("groups, more", "groups, tails")
    parts: list[Table | Prose] = [_table(of, groups, place) for place in places]
    if not any("entropy_change" in group for group in groups):
        parts.append(Prose("no change of entropy: measured without --full"))
    return parts


def groups_document(record: Record) -> Document:
    """The groups of a run; `data` has a line for each group of every kind."""
    parts: list[Facts | Table | Prose] = []
    for of in _WHOLE:
        parts += [*group_parts(record, of), *further_tables(record, of)]
    found = groups_of(record)
    rows = [{**group, "grouped_by": of} for of in KINDS for group in found.get(of) or ()]
    return Document(tuple(parts), _data(rows, ("grouped_by",)))


def groups_of_runs(value: Sequence[Mapping[str, Any]]) -> list[Table | Prose]:
    """A table a group, the worst first, of all runs in it. `value`: the `groups` of a ranking."""
    parts: list[Table | Prose] = []
    for group in value:
        parts.append(
            Prose(f"group {escaped(str(group['group']))}, {group['share']:.1%} of the targets")
        )
        rows = group["runs"]
        place: Place = "groups" if any("kld" in row for row in rows) else "groups alone"
        parts.append(_table("model", rows, place))
    return parts


def compared_groups(value: Sequence[Mapping[str, Any]]) -> Document:
    """The document of `groups_of_runs`."""
    rows = [
        {**{k: group[k] for k in ("group", "share")}, **run}
        for group in value
        for run in group["runs"]
    ]
    return Document(tuple(groups_of_runs(value)), _data(rows, ("label", "model")))


def _table(of: str, groups: Groups, place: Place) -> Table:
    head, key, most = ("model", "label", _MODEL) if of == "model" else (KINDS[of], "group", _NAME)
    named = Column(head, None, lambda name: _cut(str(name), most))
    first = [named] if of == "model" else [named, number("share", None, ".1%", 5)]
    metrics = shown(place)
    rows = []
    for group in groups:
        row: list[Any] = [group[key]] if of == "model" else [group[key], group["share"]]
        for metric, own in metrics:
            value = metric_of(group.get(metric.key))
            row += [value, value and value.ci95] if own.interval else [value]
        rows.append(tuple(row))
    columns = (column for metric, own in metrics for column in metric_columns(metric, own))
    return Table((*first, *columns), tuple(rows)).filled()


def _cut(name: str, most: int) -> str:
    text = escaped(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _notes(groups: Groups, names: Iterable[str], confident: float | None = None) -> list[Prose]:
    """Notes on groups without an interval, one for each reason, and on what a flip is."""
    said: dict[str, list[str]] = {}
    for name in names:
        for group in groups:
            if (note := group[name]["note"]) is not None:
                said.setdefault(note, []).append(_cut(str(group["group"]), _NAME))
    lines = [
        f"no interval for {', '.join(of[:4])}{' …' * (len(of) > 4)}: {note}"
        for note, of in said.items()
    ]
    if confident is not None:
        lines.append(
            f"flips/10k: in 10,000 targets where the base is sure (p > {confident:g}), those with "
            "another likeliest token"
        )
    return [Prose("\n".join(lines))] if lines else []


def _data(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> Table:
    metrics = [metric for metric in METRICS if metric.of_groups]
    columns = (
        *(words(None, name) for name in (*first, "group")),
        *(data(name) for name in ("from", "to", "n", "share")),
        *(replace(measured("", metric.data_key, ""), head=None) for metric in metrics),
    )
    names = (*first, "group", "from", "to", "n", "share")
    cells = (
        (*map(row.get, names), *(metric_of(row.get(metric.key)) for metric in metrics))
        for row in rows
    )
    return Table(columns, tuple(cells))
