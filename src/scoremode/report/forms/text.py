"""A document as a terminal shows it."""

from typing import Any

from scoremode.report.forms.document import Column, Document, Facts, Said, Table
from scoremode.report.layout import columns_table, pairs

__all__ = ["document_text", "table_text"]


def document_text(document: Document) -> str:
    """The parts, an empty line between two."""
    return "\n\n".join(_part(part) for part in document.parts)


def table_text(table: Table) -> str:
    """Columns as wide as they need to be, under their headings."""
    shown = [i for i, column in enumerate(table.columns) if column.head is not None]
    header = [table.columns[i].head or "" for i in shown]
    rows = [[_cell(table.columns[i], row[i]) for i in shown] for row in table.rows]
    return columns_table(header, rows)


def _part(part: Any) -> str:
    if isinstance(part, Facts):
        return pairs(part.rows)
    return table_text(part) if isinstance(part, Table) else part.text


def _cell(column: Column, value: Any) -> str:
    if isinstance(value, Said):
        return value.word
    return "-" if value is None else column.show(value)
