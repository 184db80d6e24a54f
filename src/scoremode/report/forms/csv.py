"""A table as CSV: one header, every number in full.

A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@` as a formula, and a model's name may be
anything: such text gets an apostrophe in front, which spreadsheets don't show.
"""

import csv
import io
from typing import Any

from scoremode.report.forms.document import Column, Said, Table
from scoremode.report.layout import escaped

__all__ = ["table_csv"]


def table_csv(table: Table) -> str:
    """A line a row behind the columns' names, units in them; what is not there is empty."""
    shown = [(i, column) for i, column in enumerate(table.columns) if column.key is not None]
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(f"{column.key}{end}" for _, column in shown for end in column.ends)
    for row in table.rows:
        lines.writerow(part for i, column in shown for part in _parts(column, row[i]))
    return file.getvalue()


def _parts(column: Column, value: Any) -> list[Any]:
    if value is None or isinstance(value, Said):
        return [""] * len(column.ends)
    return [_plain(part) for part in column.parts(value)]


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, str):
        return value
    return f"'{escaped(value)}" if value.startswith(("=", "+", "-", "@")) else escaped(value)
