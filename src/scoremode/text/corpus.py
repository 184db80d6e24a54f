"""Corpora: the exact text of a measurement, and where it came from.

A corpus is a tuple of rows. Protocols differ in how they make one text of them, so the rule is
applied here and the result is hashed by whoever records it. A plain file or a string is one row. So are
several files, folders and standard input: one text, one behind the other with nothing between, as `cat`
joins them, so that the text's hash is that of `cat FILES`. Grouped by file, each is a text of its own,
labeled by its name.

WikiText-2's raw test split is known by its hash, whichever way it arrives: its hub rows, its parquet
file and `wiki.test.raw` give the same rows and so the same texts.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from scoremode.errors import CorpusError, UsageError
from scoremode.lib.files import MOST_TEXT, read_at_most, read_regular
from scoremode.text.protocol import TextRule
from scoremode.text.rows import check_labels, decoded, drawn_rows, label_of, read_rows

__all__ = [
    "BY_FILE",
    "PACKED",
    "ROWS",
    "STDIN",
    "TABLES",
    "WIKITEXT2_NAME",
    "WIKITEXT2_RAW_SHA256",
    "Corpus",
    "TextFile",
    "from_dataset_file",
    "from_file",
    "from_files",
    "from_rows",
    "from_string",
    "pages_of",
    "read_text",
    "text_of",
]


# The hash of wiki.test.raw, 1,290,590 bytes: WikiText-2 raw, test split.
WIKITEXT2_RAW_SHA256 = "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"
WIKITEXT2_NAME = "wikitext wikitext-2-raw-v1 test"
# Names of data sets: those that `from_dataset_file` reads, and others.
ROWS = {".jsonl", ".ndjson", ".parquet"}
PACKED = (".jsonl.gz", ".ndjson.gz", ".json.gz")
TABLES = {".json", ".csv", ".tsv", ".arrow", ".feather", ".orc", ".xlsx"}
# Standard input among files.
STDIN = Path("-")
# The one thing that files can be grouped by.
BY_FILE = "file"
_MOST_FILES = 10_000


@dataclass(frozen=True)
class TextFile:
    """A file among several that a text is made of; `bytes` is how many it has."""

    source: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Corpus:
    """Rows of text and their origin.

    - `form`: `text` is one row taken as it is; `wikitext` rows can be put back into the raw file
      they came from; `rows` cannot.
    - `source_sha256`: of the bytes that were read.
    - `row_limit`: how many rows were asked for (of those that the text rule keeps), None for all;
      `row_seed`: what draws them, None for the first ones.
    - `separator`: what rows are joined by, but for `raw-file`; `preset`: the name in `text.presets`;
      `text_field`: the column or field of a data set that the rows are.
    - `files`: what the text was read from, one behind the other, where that is more than one file or
      a folder; `skipped`: the folder's hidden files, which were not read.
    - `group_by`: the field that names each row's group, None for no groups; `labels`: these names.
    - `apart`: each row is a file's text, and nothing crosses from one to the next.
    """

    name: str
    rows: tuple[str, ...]
    form: Literal["text", "wikitext", "rows"]
    source: str
    source_sha256: str
    row_limit: int | None = None
    files: tuple[TextFile, ...] = ()
    skipped: tuple[str, ...] = ()
    group_by: str | None = None
    labels: tuple[str, ...] = ()
    apart: bool = False
    row_seed: int | None = field(default=None, kw_only=True)
    separator: str = field(default="\n\n", kw_only=True)
    preset: str | None = field(default=None, kw_only=True)
    text_field: str = field(default="text", kw_only=True)

    def limited_to(self, rows: int | None, seed: int | None = None) -> "Corpus":
        """This corpus, its texts made of the first `rows` rows, or of so many that `seed` draws, in
        their order. Raises UsageError."""
        if rows is None:
            return self
        if rows < 1:
            raise UsageError(f"--num-samples {rows}: must be at least 1")
        if self.form == "text":
            raise UsageError(f"--num-samples {rows}: {self.name} is one text and has no rows")
        return replace(self, row_limit=rows, row_seed=seed)

    def text(self, rule: TextRule) -> str:
        """The text that `rule` makes of the rows; see `Protocol.text`. Texts apart are put one behind
        the other. Raises CorpusError."""
        if self.form == "text" or rule == "pages":
            return "".join(self.texts(rule))
        if rule != "raw-file":
            return self.separator.join(self.rows[i] for i in self._kept(rule))
        if self.form != "wikitext":
            raise CorpusError(
                f"{self.name} is a data set of rows, and the protocol scores a text file "
                "as it is: give one with -f"
            )
        # The raw file writes a row's newline inside the row, and a blank row as one space.
        rows = (self.rows[i] for i in self._kept(rule))
        return "".join(row or " \n" for row in rows).removesuffix("\n")

    def texts(self, rule: TextRule) -> tuple[str, ...]:
        """The one text that `rule` makes of the rows, each of those apart, or each page. Raises
        CorpusError."""
        if rule == "pages":
            pages = self._pages()
            return tuple(pages[i] for i in self._limited(list(range(len(pages)))))
        if self.form != "text":
            return (self.text(rule),)
        return tuple(row.removesuffix("\n") if rule == "raw-file" else row for row in self.rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on what an editor or git may have added to the text, which is scored as it is."""
        marks = sum(row.count("\ufeff") for row in self.rows)
        ends = sum(row.count("\r\n") for row in self.rows)
        said = ((marks, "byte order mark", "U+FEFF"), (ends, "Windows line end", "CRLF"))
        return tuple(
            f"{self.source}: its text has {count:,} {what}{'s' if count > 1 else ''} ({code}), scored "
            "like the rest: without them it has other tokens and another perplexity"
            for count, what, code in said
            if count
        )

    def row_labels(self, rule: TextRule) -> list[tuple[int, str]]:
        """The character of `text` that each of its rows begins with, and the row's label."""
        found, at = [], 0
        for i in self._kept(rule):
            found.append((at, self.labels[i]))
            row = self.rows[i]
            at += len(row or " \n") if rule == "raw-file" else len(row) + len(self.separator)
        return found

    def _kept(self, rule: TextRule) -> list[int]:
        """The places of the rows that `rule` makes the text of."""
        has_blank = rule != "nonblank-rows"
        return self._limited([i for i, r in enumerate(self.rows) if has_blank or r.strip()])

    def _pages(self) -> tuple[str, ...]:
        """WikiText's pages; the rows of any other data set are taken for pages."""
        if self.form == "rows":
            return self.rows
        # As the raw file has them.
        written = (row or " \n" for row in self.rows)
        raws = ["".join(written)] if self.form == "wikitext" else self.rows
        return tuple(page for raw in raws for page in pages_of(raw))

    def _limited(self, kept: list[int]) -> list[int]:
        """The first of these places, or those that are drawn, where there is a limit."""
        if self.row_seed is None or self.row_limit is None:
            return kept[: self.row_limit]
        return drawn_rows(kept, self.row_limit, self.row_seed)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "rows": None if self.form == "text" else len(self.rows),
            "row_limit": self.row_limit,
        }
        if self.text_field != "text":
            value["text_field"] = self.text_field
        if self.row_seed is not None:
            value["row_seed"] = self.row_seed
        if self.preset is not None:
            value |= {"preset": self.preset, "separator": self.separator}
        if self.files:
            value["joined"] = "apart" if self.apart else "concatenated"
            value["files"] = [asdict(file) for file in self.files]
            value["skipped"] = list(self.skipped)
        if self.group_by is not None:
            value["group_by"] = self.group_by
        return value


def from_file(path: Path) -> Corpus:
    """A utf-8 text file, taken as it is. Raises CorpusError for one that is no text."""
    data, text = read_text(path)
    return Corpus(path.name, (text,), "text", str(path), _digest(data))


def from_files(paths: Sequence[Path], group_by: str | None = None) -> Corpus:
    """The text of `paths` in their order: files, folders, and `-` for standard input; with `group_by`,
    which must be BY_FILE, the texts of each.

    A folder's text is that of its files, sorted by name; hidden ones are left out and named in the
    record. Raises CorpusError for anything in it that is no text, UsageError for `-` given twice.
    """
    if group_by not in (None, BY_FILE):
        raise UsageError(
            f"--group-by {group_by}: texts of -f are grouped by file; fields have data sets"
        )
    if group_by is None and list(paths) == [STDIN]:
        data, text = _stdin()
        return Corpus("stdin", (text,), "text", "stdin", sha256(data).hexdigest())
    if group_by is None and len(paths) == 1 and not paths[0].is_dir():
        return from_file(paths[0])
    if sum(path == STDIN for path in paths) > 1:
        raise UsageError("-f - is given twice: standard input can be read once")
    skipped: list[str] = []
    files, texts, digest, room = [], [], sha256(), MOST_TEXT
    for path in chain.from_iterable(_files(path, skipped) for path in paths):
        name = "stdin" if path == STDIN else str(path)
        data, text = _stdin() if path == STDIN else read_text(path)
        room -= len(data)
        if room < 0 or len(files) == _MOST_FILES:
            raise CorpusError(
                f"{name}: with the files before it a text of more than {_MOST_FILES:,} files or "
                f"{MOST_TEXT >> 20:,} MiB"
            )
        digest.update(data)
        texts.append(text)
        files.append(TextFile(name, sha256(data).hexdigest(), len(data)))
    name = paths[0].resolve().name if paths[0] != STDIN else "stdin"
    labels = () if group_by is None else _labels(files)
    return Corpus(
        f"{name} and {len(paths) - 1} more" if len(paths) > 1 else name,
        tuple(texts) if labels else ("".join(texts),),
        "text",
        ", ".join("stdin" if path == STDIN else str(path) for path in paths),
        digest.hexdigest(),
        files=tuple(files),
        skipped=tuple(skipped),
        group_by=group_by,
        labels=labels,
        apart=bool(labels),
    )


def read_text(path: Path) -> tuple[bytes, str]:
    """The bytes of a text file, and the text that they are. Raises CorpusError.

    A data set's rows would be scored with the syntax around them, so a file of such a name is refused.
    """
    suffix = path.suffix.lower()
    if suffix in ROWS | TABLES and not path.is_dir():
        how = "give it" if suffix in ROWS else "turn it into .jsonl and give that"
        raise CorpusError(
            f"{path}: a {suffix} file is a data set, and -f takes a text as it is, syntax and all: "
            f"{how} with --dataset-file and --text-field NAME"
        )
    data = _read(path)
    return data, text_of(data, str(path))


def text_of(data: bytes, name: str) -> str:
    """The text that bytes are. Raises CorpusError for what no text is.

    No text has a NUL byte, and half of the bytes of English in UTF-16 are.
    """
    if (at := data.find(0)) >= 0:
        raise CorpusError(
            f"{name}: not a text: byte {at} is NUL (a binary file, or UTF-16: give it as utf-8)"
        )
    return decoded(data, name)


def from_string(text: str) -> Corpus:
    """A text given on the command line."""
    return Corpus("text", (text,), "text", "argument", _digest(_encode(text, "the text given")))


def from_rows(
    rows: Iterable[Any],
    *,
    name: str,
    source: str,
    digest: str,
    text_field: str = "text",
    groups: tuple[str, Sequence[Any]] | None = None,
) -> Corpus:
    """A corpus of `rows`, which must be strings; `text_field`: the field they are; `groups`: another
    field, and its value in each row.

    Raises CorpusError, naming the row.
    """
    checked = tuple(rows)
    if not checked:
        raise CorpusError(f"{name}: no rows")
    for i, row in enumerate(checked):
        if not isinstance(row, str):
            raise CorpusError(f"{name}: row {i} is {type(row).__name__}, not text")
        _encode(row, f"{name}: row {i}")
    form = "wikitext" if _is_wikitext2(checked) else "rows"
    corpus = Corpus(name, checked, form, source, digest, text_field=text_field)
    if groups is None:
        return corpus
    field, values = groups
    labels = tuple(label_of(v, f"{name}: row {i}", field) for i, v in enumerate(values))
    assert len(labels) == len(checked)
    check_labels(labels, f"{name}: {field}")
    return replace(corpus, group_by=field, labels=labels)


def from_dataset_file(path: Path, text_field: str = "text", group_by: str | None = None) -> Corpus:
    """A data set in one file: `.jsonl`, `.parquet`, or WikiText-2's `wiki.test.raw`; `group_by`: the
    field that names each row's group.

    Raises CorpusError for anything else: a text of unknown origin is no data set of rows.
    """
    data = _read(path)
    digest = _digest(data)
    if digest == WIKITEXT2_RAW_SHA256:
        if group_by is not None:
            raise CorpusError(f"{path}: its rows have no field {group_by!r} to group by")
        lines = decoded(data, str(path)).removesuffix("\n").split("\n")
        rows = tuple(line + "\n" if line.strip() else "" for line in lines)
        return Corpus(WIKITEXT2_NAME, rows, "wikitext", str(path), digest)
    if path.suffix.lower() not in ROWS and not path.name.lower().endswith(PACKED):
        raise CorpusError(
            f"{path}: a data set file is .jsonl, .jsonl.gz, .parquet or WikiText-2's wiki.test.raw "
            f"(this file's sha256 is {digest[:12]}…); for a plain text give -f"
        )
    rows = read_rows(data, str(path), text_field)
    groups = None if group_by is None else (group_by, read_rows(data, str(path), group_by))
    corpus = from_rows(
        rows,
        name=path.name,
        source=str(path),
        digest=digest,
        text_field=text_field,
        groups=groups,
    )
    return replace(corpus, name=WIKITEXT2_NAME) if corpus.form == "wikitext" else corpus


def pages_of(raw: str) -> tuple[str, ...]:
    """The pages of a raw file of WikiText, such as wiki.test.raw, which has 62.

    A heading is a line ` = Title = `, where headings of sections, ` = = Title = = `, are none. Blank
    lines before the first heading are in no page.
    """
    pages: list[list[str]] = [[]]
    for line in raw.split("\n"):
        # What the data set looks at, so that `= = =` never begins a page.
        joined = line.replace("= = =", "===").replace("= =", "==").strip()
        if joined.startswith("= ") and joined.endswith(" ="):
            if not any(map(str.strip, pages[-1])):
                pages.pop()
            pages.append([])
        pages[-1].append(line)
    return tuple("\n".join(lines) for lines in pages)


def _is_wikitext2(rows: tuple[str, ...]) -> bool:
    if len(rows) != 4358:
        return False
    raw = "".join(row or " \n" for row in rows).encode()
    return _digest(raw) == WIKITEXT2_RAW_SHA256


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MOST_TEXT)
    except OSError as error:
        hint = ": read it as standard input, with -f -" if path.is_fifo() else ""
        raise CorpusError(f"{path}: {error.strerror}{hint}") from None


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, from JSON or the command line
        raise CorpusError(f"{name}: not Unicode text at character {error.start}") from None


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _labels(files: Sequence[TextFile]) -> tuple[str, ...]:
    """The names of files; their paths where two share a name. Raises CorpusError."""
    names = [Path(file.source).name for file in files]
    of = [
        name if names.count(name) == 1 else file.source
        for name, file in zip(names, files, strict=True)
    ]
    labels = tuple(label_of(name, name, BY_FILE) for name in of)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UsageError(f"-f {twice} is given twice: it would be one group")
    check_labels(labels, "-f")
    return labels


def _files(path: Path, skipped: list[str]) -> list[Path]:
    """A file alone, or the files of a folder; adds those that are left out to `skipped`."""
    if not path.is_dir():
        return [path]
    try:
        found = sorted(path.iterdir(), key=lambda file: file.name)
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from None
    skipped += [str(file) for file in found if file.name.startswith(".")]
    shown = [file for file in found if not file.name.startswith(".")]
    if not shown:
        raise CorpusError(f"{path}: a folder without text files")
    if nested := next((file for file in shown if file.is_dir()), None):
        raise CorpusError(
            f"{nested}: a folder in a folder, which is not looked into: give it with a -f of its own"
        )
    return shown


def _stdin() -> tuple[bytes, str]:
    try:
        data = read_at_most(sys.stdin.buffer, "stdin", MOST_TEXT)
    except (OSError, AttributeError, ValueError) as error:  # the last two where it is closed
        raise CorpusError(f"stdin: {getattr(error, 'strerror', None) or 'is closed'}") from None
    text = text_of(data, "stdin")
    # No name tells what it is.
    if _is_rows(text):
        raise CorpusError(
            "stdin: its lines are JSON objects, whose syntax would be scored with them: save it as "
            ".jsonl and give it with --dataset-file and --text-field NAME"
        )
    return data, text


def _is_rows(text: str) -> bool:
    """Tells whether the first lines are JSON objects."""
    lines = [line for line in text[: 1 << 16].splitlines() if line.strip()][:8]
    try:
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        return False
