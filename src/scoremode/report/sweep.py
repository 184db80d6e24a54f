"""What a sweep would do, as a document: a line a run, and what they come to."""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.report.compare import compare_document
from scoremode.report.forms.document import Document, Facts, Table, data, number, words

__all__ = ["foreseen_document", "rankings_table"]


def foreseen_document(value: Mapping[str, Any]) -> Document:
    """The document of `runs.sweep.foreseen.foresee`'s findings."""
    rows = value["rows"]
    columns = (
        words("model", "model"),
        number("text", "pair", "d"),
        words("would", "state"),
        words("from", "source"),
        number("GiB to read", "gib", ".3f"),
        number("s", "seconds", ".0f"),
        words("why not", "error"),
    )
    if not any(row["error"] for row in rows):
        columns = columns[:-1]
    cells = [
        (
            f"{row['model']} (the base)" if row["is_base"] else row["model"],
            row["pair"] + 1,
            row["state"],
            row["source"],
            None if row["bytes"] is None or row["state"] == "done" else row["bytes"] / 2**30,
            row["seconds"],
            row["error"],
        )[: len(columns)]
        for row in rows
    ]
    table = Table(columns, tuple(cells))
    seconds = value["seconds"]
    took = "not known: no finished run is there to tell" if seconds is None else _time(seconds)
    facts = [
        ("to run", f"{value['to_run']} of {len(rows)}"),
        ("to read", f"{value['bytes'] / 2**30:.3f} GiB"),
        ("time", took),
        ("into", value["output"]),
    ]
    if len(value["pairs"]) > 1:
        facts = [(f"text {i}", t) for i, t in enumerate(value["pairs"], 1)] + facts
    if value["download"]:
        facts.insert(-2, ("to fetch", f"{value['download'] / 2**30:.3f} GiB from the hub"))
    return Document((table, Facts(tuple(facts))), table)


def rankings_table(values: Sequence[Mapping[str, Any]]) -> Table:
    """The rankings of several texts and protocols as data: one table, whose lines say of which."""
    tables = [compare_document(value).data for value in values]
    rows = [
        (
            value["corpus"]["name"],
            value["corpus"]["text"]["sha256"],
            value["protocol"]["name"],
            *row,
        )
        for value, table in zip(values, tables, strict=True)
        for row in table.rows
    ]
    first = (data("text"), data("text_sha256"), data("protocol"))
    return Table((*first, *tables[0].columns), tuple(rows))


def _time(seconds: float) -> str:
    whole = round(seconds)
    text = f"{whole} s" if whole < 120 else f"{whole // 60} min"
    return f"{text}, by what earlier runs there took"
