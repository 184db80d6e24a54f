"""A document as text: on a terminal fitted to its width and in its colors, elsewhere whole and plain.

Names and words come from checkpoints, texts and records of others: every cell, name and line is escaped
here, so that none moves the cursor, turns the line around, or begins another one. Colors are put around
what has been escaped, and say nothing that the words don't.
"""

import os
import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TextIO

from scoremode.report.document import (
    INTERVAL,
    KEPT,
    Column,
    Document,
    Facts,
    Preformatted,
    Table,
    escaped,
)

# Parameters of ANSI's "select graphic rendition".
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
# Columns that a name or a line of facts has at least: below it nobody reads it.
_NARROWEST = 12
# A line is broken at blanks, but not within an interval, nor within a command, which is to be copied;
# a name behind what joins its parts.
_WORDS = re.compile(r"scoremode \w+ .*[/\\].*|(?:95 % )?(?:\[[^\]]*\]\S*|\S+)\s*|\s+")
_JOINS = r"/\\_.,:+-"


@dataclass(frozen=True)
class Terminal:
    """The place that a text is for: lines of at most `width` characters, None for any; with colors."""

    width: int | None = None
    has_color: bool = False

    def paint(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.has_color and any(codes) else text


FILE = Terminal()


def terminal_of(stream: TextIO) -> Terminal:
    """What a stream shows: the terminal's width, or COLUMNS, where it is a terminal; and colors as
    no-color.org and the interpreter itself have it (NO_COLOR, FORCE_COLOR, TERM=dumb)."""
    is_terminal, get = stream.isatty(), os.environ.get
    has_color = bool(get("FORCE_COLOR")) or (is_terminal and get("TERM") != "dumb")
    width = shutil.get_terminal_size().columns if is_terminal else None
    return Terminal(width, has_color and not get("NO_COLOR"))


def document_text(document: Document, terminal: Terminal = FILE) -> str:
    """Returns the verdict and the parts, an empty line between two."""
    parts = [_part(part, terminal) for part in document.below]
    if (verdict := document.verdict) is not None:
        color = {True: (_GREEN,), False: (_RED,), None: ()}[verdict.holds]
        lines = _wrapped(escaped(verdict.text), terminal.width, indent=2)
        parts.insert(0, terminal.paint(lines, _BOLD, *color))
    return "\n\n".join(parts)


def _part(part: Any, terminal: Terminal) -> str:
    if isinstance(part, Facts):
        return _facts(part, terminal)
    if isinstance(part, Table):
        return table_text(part, terminal)
    lines = [escaped(line) for line in part.text.split("\n")]
    if not isinstance(part, Preformatted):
        lines = [_wrapped(line, terminal.width) for line in lines]
    return "\n".join(lines)


def _facts(facts: Facts, terminal: Terminal) -> str:
    """Names and what is said of each beside them, the further lines of it below."""
    rows = [(escaped(name), escaped(said)) for name, said in facts.rows]
    indent = max(_cells(name) for name, _ in rows) + 2
    if terminal.width is not None:
        indent = min(indent, max(_NARROWEST, terminal.width // 3))
    lines = []
    for name, said in rows:
        gap = " " * (indent - _cells(name))
        begin = name + (gap if len(gap) > 1 else f"\n{' ' * indent}")
        text = _wrapped(said, terminal.width, indent=indent, begin=indent)
        lines.append(begin + terminal.paint(text, _tone(name, said)))
    return "\n".join(lines)


def _tone(name: str, said: str) -> str:
    """The color of a fact: of a gate, of a finding that is wrong, of a warning, whose name is words in
    capitals."""
    if name == "gate":
        return _RED if said.endswith("NOT MET") else _GREEN
    if said.startswith("WRONG"):
        return _RED
    return _YELLOW if name.isupper() and " " in name else ""


def table_text(table: Table, terminal: Terminal = FILE) -> str:
    """A table under its headings, the first column flush left, the others right. Where the width is too
    small for all columns, a line below names those left out, and what has them."""
    head, rows, left_out = table_parts(table, terminal)
    return "\n".join((*head, *rows, *left_out))


def table_parts(table: Table, terminal: Terminal = FILE) -> tuple[list[str], list[str], list[str]]:
    """`table_text` in parts: the headings, each row, what is below."""
    shown = [i for i, column in enumerate(table.columns) if column.head is not None]
    columns = [table.columns[i] for i in shown]
    cells = [[escaped(column.head or "") for column in columns]]
    cells += [[escaped(table.columns[i].said(row[i], "-")) for i in shown] for row in table.rows]
    widths = [max(_cells(row[i]) for row in cells) for i in range(len(shown))]
    has_value = [any(row[i] is not None for row in table.rows) for i in shown]
    kept, flush = list(range(len(shown))), {0}
    if terminal.width is not None and _across(widths) > terminal.width:
        kept = _kept(columns, widths, has_value, terminal.width)
        is_text = [any(isinstance(row[i], str) for row in table.rows) for i in shown]
        flush |= _narrow([i for i in kept if is_text[i]], kept, widths, terminal.width)
    lines = [_line([(row[i], widths[i], i in flush) for i in kept]) for row in cells]
    ruler = "-" * max(_cells(line) for text in lines for line in text.split("\n"))
    keys = [column.key for column in table.columns]
    base = keys.index("is_base") if "is_base" in keys else None
    rows = [
        line if base is None or not row[base] else terminal.paint(line, _DIM)
        for row, line in zip(table.rows, lines[1:], strict=True)
    ]
    # Nothing is lost with a column that has no value.
    left = [i for i in range(len(shown)) if i not in kept and has_value[i]]
    below = _left_out(columns, left, kept, terminal) if left else []
    return [terminal.paint(lines[0], _BOLD), ruler], rows, below


def _across(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _kept(
    columns: Sequence[Column], widths: Sequence[int], has_value: Sequence[bool], room: int
) -> list[int]:
    """The columns that fit: the first, those that are always shown, and others by their importance."""
    order = [i for i in range(1, len(columns)) if has_value[i]]
    order.sort(key=lambda i: -columns[i].importance)
    always = min(KEPT, columns[order[0]].importance) if order else KEPT
    kept = [0]
    for i in order:
        fits = _across([widths[k] for k in (*kept, i)]) <= room
        if fits or columns[i].importance >= always:
            kept.append(i)
    return sorted(kept)


def _narrow(of_text: Sequence[int], kept: Sequence[int], widths: list[int], room: int) -> set[int]:
    """Takes from the widest columns of text until the `kept` ones fit; returns which these are."""
    narrowed = set()
    for _ in range(_across([widths[i] for i in kept]) - room):
        widest = max(of_text, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        narrowed.add(widest)
    return narrowed


def _line(cells: Sequence[tuple[str, int, bool]]) -> str:
    """A row of a table from each cell, its column's width, and whether it stands flush left; of several
    lines where a cell is wider than its column."""
    broken = [_broken(text, width) for text, width, _ in cells]
    lines = []
    for texts in zip_longest(*broken, fillvalue=""):
        parts = (
            text + " " * (width - _cells(text)) if is_flush else " " * (width - _cells(text)) + text
            for text, (_, width, is_flush) in zip(texts, cells, strict=True)
        )
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _left_out(
    columns: Sequence[Column], left: Sequence[int], kept: Sequence[int], terminal: Terminal
) -> list[str]:
    """The line on columns that were left out; an interval that went with its number is not named."""
    names = []
    for i in left:
        head = escaped(columns[i].head or "")
        if head != INTERVAL:
            names.append(head)
        elif i - 1 in kept:
            names.append(f"{head} of {escaped(columns[i - 1].head or '')}")
    said = f"not shown in {terminal.width} columns: {', '.join(names)}"
    said += " (a wider terminal or --format markdown has all)"
    return [terminal.paint(_wrapped(said, terminal.width, indent=2), _DIM)]


def _cells(text: str) -> int:
    """The columns that a text takes on a terminal: two for a wide character, none for a mark on one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def _wrapped(text: str, width: int | None, *, indent: int = 0, begin: int = 0) -> str:
    """A line broken at `width`; `begin`: columns in front of it, `indent`: of its further lines."""
    if width is None or begin + _cells(text) <= width:
        return text
    room = max(_NARROWEST, width - indent)
    lines = _filled(_WORDS.findall(text), room, first=max(_NARROWEST, width - begin))
    return ("\n" + " " * indent).join(lines)


def _broken(text: str, width: int) -> list[str]:
    """A cell's lines in a column: broken at blanks, and a word that has no room at its joints."""
    pieces = []
    # Of wide characters half as many have room.
    most = width - 1 if text.isascii() else width // 2
    joints = rf"[^{_JOINS}]{{1,{most}}}[{_JOINS}]?\s*|[{_JOINS}]\s*"
    for word in re.findall(r"\S+\s*|\s+", text):
        pieces += [word] if _cells(word.rstrip()) <= width else re.findall(joints, word)
    return _filled(pieces, width)


def _filled(pieces: Sequence[str], room: int, first: int | None = None) -> list[str]:
    lines = [""]
    for piece in pieces:
        most = first if first is not None and len(lines) == 1 else room
        if lines[-1] and _cells(lines[-1] + piece.rstrip()) > most:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
