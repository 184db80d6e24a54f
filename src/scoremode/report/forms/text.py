"""A document as a terminal shows it.

Names and words come from checkpoints, texts and records that others made: every cell, name and line is
escaped here, so that none of them moves the cursor, turns the line around, or begins another one.
"""

from typing import Any

from scoremode.report.forms.document import Column, Document, Facts, Said, Table
from scoremode.report.layout import columns_table, escaped, pairs

__all__ = ["document_text", "table_text"]


def document_text(document: Document) -> str:
    """The parts, an empty line between two."""
    return "\n\n".join(_part(part) for part in document.parts)


def table_text(table: Table) -> str:
    """Columns as wide as they need to be, under their headings."""
    shown = [i for i, column in enumerate(table.columns) if column.head is not None]
    header = [escaped(table.columns[i].head or "") for i in shown]
    rows = [[_cell(table.columns[i], row[i]) for i in shown] for row in table.rows]
    return columns_table(header, rows)


def _part(part: Any) -> str:
    if isinstance(part, Facts):
        return pairs((escaped(name), escaped(said)) for name, said in part.rows)
    if isinstance(part, Table):
        return table_text(part)
    return "\n".join(escaped(line) for line in part.text.split("\n"))


def _cell(column: Column, value: Any) -> str:
    if isinstance(value, Said):
        return escaped(value.word)
    return "-" if value is None else escaped(column.show(value))
