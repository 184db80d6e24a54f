"""Texts from several files, from folders and from standard input, each taken as it is.

Several files are one text, one behind the other with nothing between, as `cat` joins them, so that the
text's hash is that of `cat FILES`; grouped by file, each is a text of its own, labelled by its name.
The record lists them with their own hashes.
"""

import json
import sys
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path

from scoremode.errors import CorpusError, UsageError
from scoremode.lib.files import MOST_TEXT, read_at_most
from scoremode.text.corpus import Corpus, TextFile, from_file, read_text, text_of
from scoremode.text.labels import check_labels, label_of

__all__ = ["BY_FILE", "STDIN", "from_files"]

# What stands for standard input among files.
STDIN = Path("-")
# What files can be grouped by.
BY_FILE = "file"
_MOST_FILES = 10_000


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
