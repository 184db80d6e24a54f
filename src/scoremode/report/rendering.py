"""Renders a document as Markdown that can be pasted, as CSV, or as HTML for a notebook;
`report.terminal` as a terminal's text.

- *Markdown.* GitHub's tables and lists, as the hub renders them. Text is escaped only where Markdown
  would make something else of it, so that a number, an interval, or `Q4_K_M` stands as it is.
- *CSV.* One header, every number in full. A spreadsheet runs a cell that begins with `=`, `+`, `-` or
  `@` as a formula, and a model's name may be anything: such text gets an apostrophe in front, which
  spreadsheets don't show.
- *Notebook.* HTML without a style of its own, but that text is flush left; rows as Python has them.
"""

import csv
import html
import io
import re
from collections.abc import Sequence
from typing import Any

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Preformatted,
    Said,
    Table,
    escaped,
)

# What would be taken for something else wherever it stands. Of brackets only those with an address
# behind are: a link's.
_ALWAYS = re.compile(
    r"[`*|~]"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
    # Within a word it is one more letter.
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|(?<=\])[(:\[]"
    r"|(?<=\$)\$"
    r"|!(?=\[)"
)
_ENTITY = re.compile(r"&(?=#?\w+;)")
# A cell without a value.
_NOTHING = "—"


def table_csv(table: Table) -> str:
    """The columns' names with their units, then a line a row; a missing value is empty."""
    names, rows = _data(table)
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(names)
    lines.writerows([_plain(value) for value in row] for row in rows)
    return file.getvalue()


def table_rows(table: Table) -> list[dict[str, Any]]:
    """The rows of `table_csv` as Python has them: a column's name → a value, None for a missing one."""
    names, rows = _data(table)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _data(table: Table) -> tuple[list[str], list[list[Any]]]:
    """The names of the columns that data have, and each row's values, None for a missing one."""
    shown = [(i, column) for i, column in enumerate(table.columns) if column.key is not None]
    names = [f"{column.key}{end}" for _, column in shown for end in column.ends]
    rows = [[part for i, column in shown for part in _parts(column, row[i])] for row in table.rows]
    return names, rows


def _parts(column: Column, value: Any) -> Sequence[Any]:
    is_there = value is not None and not isinstance(value, Said)
    return column.parts(value) if is_there else [None] * len(column.ends)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, str):
        return value
    return f"'{escaped(value)}" if value.startswith(("=", "+", "-", "@")) else escaped(value)


def document_markdown(document: Document) -> str:
    """Returns the parts as Markdown; the document's data comes first if no part shows it."""
    parts = [_part(part) for part in document.parts if _rows(part)]
    table = document.data.filled()
    is_shown = any(part in (document.data, table) for part in document.parts)
    if not is_shown and table.columns:
        parts = [
            table_markdown(table),
            *(_part(_untabled(part)) for part in document.parts if _rows(_untabled(part))),
        ]
    return "\n\n".join(parts)


def table_markdown(table: Table) -> str:
    """A Markdown table, the first column flush left, the others right."""
    shown = [i for i, column in enumerate(table.columns) if column.head is not None]
    header = [literal(table.columns[i].head or "") for i in shown]
    aligned = ["---", *("---:" for _ in shown[1:])]
    rows = [[_cell(table.columns[i], row[i]) for i in shown] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, aligned, *rows))


def literal(text: str) -> str:
    """A line of text that Markdown shows as it is, in a table's cell as well, without characters that
    act on a terminal or a page."""
    text = _ENTITY.sub("&amp;", escaped(text)).replace("<", "&lt;").replace(">", "&gt;")
    return _ALWAYS.sub(r"\\\g<0>", text)


def preformatted(text: str, language: str = "") -> str:
    """Lines in a fence that none of them closes, escaped as `literal` does."""
    text = "\n".join(escaped(line) for line in text.split("\n"))
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _rows(part: Any) -> bool:
    return bool(part.rows if isinstance(part, Facts | Table) else part.text)


def _untabled(part: Any) -> Any:
    """Facts without those whose numbers are in the table."""
    if not isinstance(part, Facts) or not part.tabled:
        return part
    kept, name = [], ""
    for own, said in part.rows:
        name = own or name
        if name not in part.tabled:
            kept.append((own, said))
    return Facts(tuple(kept))


def _part(part: Any) -> str:
    if isinstance(part, Facts):
        return _list(part.rows)
    if isinstance(part, Table):
        return table_markdown(part)
    if isinstance(part, Preformatted):
        return preformatted(part.text)
    return "\n".join(literal(line) for line in part.text.split("\n"))


def _list(rows: Sequence[tuple[str, str]]) -> str:
    lines, name = [], ""
    for own, said in rows:
        # A line that began with a name's value might begin a list or a heading of its own.
        name = own or name
        lines.append(f"- {literal(name)}: {literal(said)}")
    return "\n".join(lines)


def _cell(column: Column, value: Any) -> str:
    return literal(column.said(value, _NOTHING))


def document_html(document: Document) -> str:
    """Returns the verdict and the parts as HTML, as a notebook shows them."""
    parts = [_html_part(part) for part in document.below if _rows(part)]
    if document.verdict is not None:
        parts.insert(0, f"<p><b>{html.escape(escaped(document.verdict.text))}</b></p>")
    return "\n".join(parts)


def _html_part(part: Any) -> str:
    if isinstance(part, Facts):
        rows = [[_html_cell("th", name), _html_cell("td", said)] for name, said in part.rows]
        return _html_table([], rows)
    if isinstance(part, Table):
        shown = [i for i, column in enumerate(part.columns) if column.head is not None]
        head = [_html_cell("th", part.columns[i].head or "", left=i == shown[0]) for i in shown]
        rows = [
            [
                _html_cell("td", part.columns[i].said(row[i], _NOTHING), left=i == shown[0])
                for i in shown
            ]
            for row in part.rows
        ]
        return _html_table(head, rows)
    lines = [html.escape(escaped(line)) for line in part.text.split("\n")]
    if isinstance(part, Preformatted):
        return f"<pre>{chr(10).join(lines)}</pre>"
    return f"<p>{'<br>'.join(lines)}</p>"


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first = f"<thead><tr>{''.join(head)}</tr></thead>" if head else ""
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table style='margin-bottom: 1em'>{first}<tbody>{lines}</tbody></table>"


def _html_cell(tag: str, text: str, *, left: bool = True) -> str:
    side = "left" if left else "right"
    return f'<{tag} style="text-align: {side}">{html.escape(escaped(text))}</{tag}>'
