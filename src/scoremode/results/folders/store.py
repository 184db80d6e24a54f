"""Run folders: what is on disk is whole, or is not there.

A run owns one folder: `record.json`, and while it is running `parts/NNNNN.parquet`, one a pass.
Every file is written under a temporary name, synced and renamed, so a kill at any moment leaves
whole passes and nothing else; the last step merges them into `scores.parquet`. A lock on the folder
dies with its process, so a killed run can be resumed at once and a living one can't be touched.

The folder itself may be given through a link. Nothing in it is one, and only what the format names is
ever removed from it.

What is read again is known by its sha256, which is taken of the bytes on their way to the disk, never
of what the disk gives back, and which the record holds; the record holds its own as well. A part
that the record doesn't know was being written when a kill came, and counts for nothing.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from scoremode.errors import RunFolderError
from scoremode.lib.files import (
    MOST_JSON,
    atomic,
    is_held,
    is_partial,
    make_folder,
    open_lock,
    read_regular,
    remove_folder,
    take,
    write_text,
)
from scoremode.lib.json import json_digest, json_text
from scoremode.results.folders.tables import (
    TOKEN_TEXT,
    Columns,
    check_conversations,
    check_texts,
    read_parquet,
)
from scoremode.results.record.section import misfit
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import CONVERSATION

RECORD, SCORES, PARTS, LOCK = "record.json", "scores.parquet", "parts", ".lock"
# Of a kept base.
STATES, HEAD, TOKENS = "states", "head.safetensors", "tokens.i32"
# All that a run writes in its folder; of parts and states the numbered files.
_FILES = {RECORD, SCORES, LOCK, HEAD, TOKENS, "requests.parquet", "answers.parquet", "recipe.json"}
_NUMBERED = {PARTS: r"\d{5,}\.parquet", STATES: r"\d{5,}\.safetensors"}
_ATTRIBUTION = r"attribution-[a-z]+\.(json|parquet)"


class RunFolder:
    """A run's folder, held by this process until `close`."""

    def __init__(self, path: Path, lock: IO[bytes]):
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: Path, *, again: bool = False) -> "RunFolder":
        """Makes and locks a new folder; `again`: or takes one whose run was killed before it had a
        record. Raises RunFolderError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (again and _is_beginning(path)):
                path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise RunFolderError(f"{path}: is not a folder, or is in none") from None
            raise RunFolderError(
                f"{path}: cannot make the run's folder: File exists, and no run's record in it: remove "
                "it, or name another"
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot make the run's folder: {error.strerror}"
            ) from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Locks an existing folder and clears what a kill left half-written."""
        try:
            lock = open_lock(path / LOCK)
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot open the run's folder: {error.strerror}"
            ) from None
        try:
            take(lock)
            # Whoever held it may have removed this very file on closing: it would lock nobody out.
            if not os.path.samestat(os.fstat(lock.fileno()), (path / LOCK).lstat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            lock.close()
            raise RunFolderError(f"{path}: another process is writing this run") from None
        except OSError as error:
            lock.close()
            raise RunFolderError(f"{path}: cannot be locked: {error.strerror}") from None
        try:
            make_folder(path / PARTS, below=path)
            for inside, is_own in ((path, _is_own), (path / PARTS, _is_part)):
                for leftover in inside.iterdir():
                    if is_partial(leftover.name, is_own):
                        leftover.unlink()
        except OSError as error:
            lock.close()
            named = error.filename or path
            raise RunFolderError(f"{named}: cannot be written: {error.strerror}") from None
        return cls(path, lock)

    @property
    def is_empty(self) -> bool:
        """True while there is no score on disk."""
        return not self._names and not (self.path / SCORES).exists()

    def close(self) -> None:
        if self._lock.closed:
            return
        with suppress(FileNotFoundError):
            # What somebody else put there meanwhile is not ours to remove.
            if os.path.samestat(os.fstat(self._lock.fileno()), (self.path / LOCK).lstat()):
                (self.path / LOCK).unlink()
        self._lock.close()

    def discard(self) -> None:
        """Removes all that a run writes, the record last: a kill meanwhile leaves a run. The folder
        goes with it, unless something else lies there. Raises RunFolderError."""
        with _removing(self.path):
            for name in _NUMBERED:
                with suppress(FileNotFoundError):
                    remove_folder(self.path / name, partial(_is_numbered, name))
            remove_folder(self.path, lambda name: _is_own(name) and name not in (RECORD, LOCK))
            for name in (RECORD, LOCK):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()
        self._lock.close()

    @property
    def _names(self) -> set[str]:
        parts = self.path / PARTS
        return {p.name for p in parts.glob("*.parquet")} if not parts.is_symlink() else set()

    def part_path(self, number: int) -> Path:
        return self.path / PARTS / part_name(number)

    def keep_parts(self, known: int, kept: int) -> None:
        """Removes all parts from `kept` on, of which the record knows the first `known`, and what a
        kill left behind them. Raises RunFolderError for a part that no kill leaves."""
        # One may be on disk and not yet in the record.
        expected = {part_name(number) for number in range(known + 1)}
        if strange := sorted(self._names - expected):
            raise RunFolderError(
                f"{self.path / PARTS / strange[0]}: is no part of this run, whose record has {known}: "
                "remove it, and --resume goes on"
            )
        # The last one first: what is left is without a gap.
        with _removing(self.path / PARTS):
            for number in range(known, kept - 1, -1):
                self.part_path(number).unlink(missing_ok=True)

    def write_record(self, document: dict[str, Any]) -> None:
        """Writes the record, sealed: its `sha256` is set."""
        document["sha256"] = seal_of(document)
        write_text(self.path / RECORD, json_text(document))

    def write_part(self, number: int, scores: Scores, beside: Columns | None = None) -> str:
        """Writes a pass's part, with further columns `beside` the scores, and returns the sha256 of its
        bytes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(scores.columns() | (beside or {})), buffer, compression="zstd")
        data = memoryview(buffer.getvalue())
        with atomic(self.part_path(number)) as tmp:
            tmp.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def read_part(self, number: int, sha256: str | None = None, rows: int | None = None) -> Scores:
        """A pass's part, of at most so many rows. Raises RunFolderError, also where its bytes have
        another `sha256`."""
        return read_columns(self.part_path(number), sha256, rows)[0]

    def merge(self, parts: Iterable[Scores], extra: Callable[[Scores], Columns]) -> str:
        """Joins `parts` into `scores.parquet`, one in memory at a time; returns its sha256.

        `extra` gives further columns of a part's rows.
        """
        import pyarrow as pa

        return self.join(pa.table(part.columns() | extra(part)) for part in parts)

    def join(self, tables: Iterable[Any]) -> str:
        """Joins Arrow tables of the same columns into `scores.parquet`; returns its sha256."""
        import pyarrow.parquet as pq

        with atomic(self.path / SCORES) as tmp, tmp.open("wb") as file:
            hashed, writer = _Hashed(file), None
            try:
                for table in tables:
                    writer = writer or pq.ParquetWriter(hashed, table.schema, compression="zstd")
                    writer.write_table(table)
            finally:
                if writer:
                    writer.close()
        return hashed.digest.hexdigest()

    def drop_parts(self) -> None:
        """Removes the parts, and their folder where nothing else is in it."""
        with _removing(self.path / PARTS):
            remove_folder(self.path / PARTS, _is_part)


class _Hashed:
    """A file to write to that keeps the sha256 of what was written."""

    closed = False

    def __init__(self, file: IO[bytes]):
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Does nothing: the file's owner closes it."""


def tidy(path: Path) -> None:
    """Removes what a kill after the last record left in a run that is over, where it can be removed.

    For the command that goes on with the run: one that only reads it changes nothing.
    """
    try:
        if not any(map(_is_left, path.iterdir())):
            return
    except OSError:
        return
    # It is in nobody's way: not in a folder that may only be read, nor while its run still clears up.
    with suppress(RunFolderError, OSError):
        folder = RunFolder.open(path)
        try:
            folder.drop_parts()
        finally:
            folder.close()


def drop_beginnings(parent: Path) -> None:
    """Removes folders directly under `parent` of runs that were killed before their first record, and
    that nobody holds. Raises RunFolderError."""
    for lock in parent.glob(f"*/{LOCK}"):
        folder = lock.parent
        try:
            if not folder.is_symlink() and _is_beginning(folder) and not is_held(lock):
                RunFolder.open(folder).discard()
        except OSError as error:
            raise RunFolderError(f"{lock}: {error.strerror}") from None


def seal_of(document: dict[str, Any]) -> str:
    """sha256 of all that a record says, whatever the order and the spaces of its text."""
    # Through JSON, which knows neither tuples nor keys that are numbers.
    return json_digest(json.loads(json.dumps({k: v for k, v in document.items() if k != "sha256"})))


def read_json(path: Path) -> Any:
    """What a JSON file beside a record holds, such as an attribution. Raises RunFolderError."""
    try:
        return json.loads(read_regular(path, MOST_JSON, links=False))
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not JSON: {error}") from None


def manifest_in(
    file: Path, what: str, schema: str, version: int, header: Any = None
) -> dict[str, Any] | None:
    """The manifest of `what`, such as a sweep, of that schema and version; None where there is none.

    - `header`: what else it must have to be one, as msgspec knows it.

    Its seal is still to be held against it. Raises RunFolderError.
    """
    if not os.path.lexists(file):
        return None
    try:
        found = json.loads(read_regular(file, MOST_JSON, links=False))
    except OSError as error:
        raise RunFolderError(f"{file}: not readable: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file}: not JSON: {error}") from None
    is_one = isinstance(found, dict) and not (header and misfit(found, header))
    if not is_one or found.get("schema") != schema:
        raise RunFolderError(f"{file}: is no {what}'s manifest: remove it, or name another folder")
    if found.get("schema_version") != version:
        raise RunFolderError(
            f"{file}: is of version {found.get('schema_version')}, and this scoremode's {version}"
        )
    return found


def read_record(path: Path) -> dict[str, Any]:
    """The record in a run's folder. Raises RunFolderError."""
    try:
        record = json.loads(
            read_regular(path / RECORD, MOST_JSON, links=False),
            parse_float=_finite,
            parse_constant=_finite,
        )
    except OSError as error:
        raise RunFolderError(f"{path}: no readable record: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path / RECORD}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise RunFolderError(f"{path / RECORD}: not a record")
    return record


def read_scores(path: Path, sha256: str | None = None) -> Scores:
    """The merged Scores in a finished run's folder. Raises RunFolderError, also where the file's bytes
    have another `sha256`."""
    return read_columns(path / SCORES, sha256)[0]


def read_columns(
    path: Path, sha256: str | None = None, rows: int | None = None
) -> tuple[Scores, Columns]:
    """The Scores in a Parquet file and the columns beside them, [N] each; see `RunFolder.merge`.

    Of these `weight` (float64) is there only where an evaluation may count otherwise than once, and
    `token_text` (str) only where it was asked for.
    `sha256`: what the file's bytes must have; `rows`: the most that are read, as what says what was
    measured promises. Raises RunFolderError.
    """
    columns = read_parquet(path, sha256, rows)
    if missing := Scores.missing(columns):
        raise RunFolderError(
            f"{path}: has no column {missing[0]} (an earlier build's, or changed since): measure it "
            "again"
        )
    scores = Scores.from_columns(columns)
    if TOKEN_TEXT in columns:
        check_texts(path, scores.target, columns[TOKEN_TEXT])
    if CONVERSATION in columns:
        check_conversations(path, scores.window, columns[CONVERSATION])
    own = scores.columns()
    return scores, {name: column for name, column in columns.items() if name not in own}


def find_runs(
    parent: Path, notify: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All run folders directly under `parent` with their records, newest name first.

    A neighbour that can't be read is nobody's run to go on with; `notify` is told of it.
    """
    for file in sorted(parent.glob("*/" + RECORD), reverse=True):
        try:
            if file.parent.is_symlink():
                raise RunFolderError(f"{file.parent}: is a link")
            record = read_record(file.parent)
        except RunFolderError as error:
            notify(f"left alone: {error}")
        else:
            yield file.parent, record


def part_name(number: int) -> str:
    """The name of a pass's file in the folder of parts."""
    return f"{number:05}.parquet"


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


def _is_beginning(path: Path) -> bool:
    """Tells whether nothing is in a folder but what lies there before a run's first record."""
    if not path.is_dir():
        return False
    for inside in path.iterdir():
        if inside.name == PARTS and inside.is_dir() and not inside.is_symlink():
            if not all(is_partial(one.name, _is_part) for one in inside.iterdir()):
                return False
        elif inside.name != LOCK and not is_partial(inside.name, lambda name: name == RECORD):
            return False
    return True


@contextmanager
def _removing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = error.filename or path
        raise RunFolderError(f"{named}: cannot be removed: {error.strerror}") from None


def _is_own(name: str) -> bool:
    """Tells whether a file of that name in a run's folder is one that a run writes."""
    return name in _FILES or re.fullmatch(_ATTRIBUTION, name) is not None


def _is_numbered(folder: str, name: str) -> bool:
    return re.fullmatch(_NUMBERED[folder], name) is not None


_is_part = partial(_is_numbered, PARTS)


def _is_left(path: Path) -> bool:
    """Tells whether what lies in the folder of a run that is over was left by a kill."""
    if path.name == PARTS and path.is_dir() and not path.is_symlink():
        names = [inside.name for inside in path.iterdir()]
        return not names or any(_is_part(n) or is_partial(n, _is_part) for n in names)
    return path.name == LOCK or is_partial(path.name, _is_own)
