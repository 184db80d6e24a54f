"""Run folders: what is on disk is whole, or is not there.

A run owns one folder: `record.json`, and while it is running `parts/NNNNN.parquet`, one a pass.
Every file is written under a temporary name, synced and renamed, so a kill at any moment leaves
whole passes and nothing else; the last step merges them into `scores.parquet`. A lock on the folder
dies with its process, so a killed run can be resumed at once and a living one can't be touched.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from scoremode.errors import RunFolderError
from scoremode.results.scores import Scores

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "RunFolder",
    "atomic",
    "find_runs",
    "read_extras",
    "read_record",
    "read_scores",
    "write_text",
]

RECORD, SCORES, PARTS, LOCK = "record.json", "scores.parquet", "parts", ".lock"


class RunFolder:
    """One run's folder, held by this process until `close`."""

    def __init__(self, path: Path, lock: IO[str]):
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Makes and locks a new folder. Raises RunFolderError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            (path / PARTS).mkdir()
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot make the run's folder: {error.strerror}"
            ) from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Locks an existing folder and clears what a kill left half-written."""
        try:
            lock = (path / LOCK).open("w")
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot open the run's folder: {error.strerror}"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have removed this very file on closing: it would lock nobody out.
            if not os.path.samestat(os.fstat(lock.fileno()), (path / LOCK).stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            lock.close()
            raise RunFolderError(f"{path}: another process is writing this run") from None
        except OSError as error:
            lock.close()
            raise RunFolderError(f"{path}: cannot be locked: {error.strerror}") from None
        for leftover in [*path.glob("*.tmp"), *(path / PARTS).glob("*.tmp")]:
            leftover.unlink()
        return cls(path, lock)

    @property
    def is_empty(self) -> bool:
        """Whether there is no score on disk yet."""
        return self.parts == 0 and not (self.path / SCORES).exists()

    def close(self) -> None:
        with suppress(FileNotFoundError):
            (self.path / LOCK).unlink()
        self._lock.close()

    def discard(self) -> None:
        """Removes the folder with all that is in it."""
        shutil.rmtree(self.path)
        self._lock.close()

    @property
    def parts(self) -> int:
        """How many passes are on disk: parts 0 to parts - 1, without a gap."""
        names = {p.name for p in (self.path / PARTS).glob("*.parquet")}
        return next(i for i in range(len(names) + 1) if _part_name(i) not in names)

    def write_record(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write_text(self.path / RECORD, text)

    def write_part(self, number: int, scores: Scores) -> None:
        with atomic(self.path / PARTS / _part_name(number)) as tmp:
            _write_table(_table(scores), tmp)

    def read_part(self, number: int) -> Scores:
        return _read(self.path / PARTS / _part_name(number))

    def merge(self, extra: Callable[[Scores], dict[str, np.ndarray]] | None = None) -> None:
        """Joins all parts into `scores.parquet`, one part in memory at a time.

        `extra` gives further columns of a part's rows.
        """
        import pyarrow.parquet as pq

        with atomic(self.path / SCORES) as tmp:
            writer = None
            for number in range(self.parts):
                part = self.read_part(number)
                table = _table(part, extra(part) if extra else {})
                writer = writer or pq.ParquetWriter(tmp, table.schema, compression="zstd")
                writer.write_table(table)
            if writer:
                writer.close()

    def drop_parts(self) -> None:
        shutil.rmtree(self.path / PARTS)


def read_record(path: Path) -> dict[str, Any]:
    """The record in a run's folder. Raises RunFolderError."""
    try:
        record = json.loads((path / RECORD).read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path}: no readable record: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path / RECORD}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise RunFolderError(f"{path / RECORD}: not a record")
    return record


def read_scores(path: Path) -> Scores:
    """The merged Scores in a finished run's folder. Raises RunFolderError."""
    return _read(path / SCORES)


def read_extras(path: Path) -> dict[str, np.ndarray]:
    """The columns beside the Scores in a finished run's folder, [N] each; see `RunFolder.merge`.

    `weight` (float64) is there only where an evaluation may count otherwise than once. Raises
    RunFolderError.
    """

    def others(names: list[str]) -> list[str]:
        return [name for name in names if name not in Scores.known(names)]

    return _read_columns(path / SCORES, others)


def write_text(path: Path, text: str) -> None:
    """A file that is there whole, or not at all. Raises RunFolderError."""
    with atomic(path) as tmp:
        # A path that is not UTF-8 stands escaped in JSON, and is read back as it was.
        tmp.write_text(text, encoding="utf-8", errors="backslashreplace")


def find_runs(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All run folders directly under `parent` with their records, newest name first."""
    for file in sorted(parent.glob("*/" + RECORD), reverse=True):
        # A neighbour that can't be read is nobody's run to go on with.
        with suppress(RunFolderError):
            yield file.parent, read_record(file.parent)


def _part_name(number: int) -> str:
    return f"{number:05}.parquet"


def _table(scores: Scores, extra: dict[str, np.ndarray] | None = None) -> "pa.Table":
    import pyarrow as pa

    return pa.table({**scores.columns(), **(extra or {})})


def _write_table(table: "pa.Table", path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path, compression="zstd")


def _read(path: Path) -> Scores:
    return Scores.from_columns(_read_columns(path, Scores.known))


def _read_columns(path: Path, choose: Callable[[list[str]], list[str]]) -> dict[str, np.ndarray]:
    """Those columns of a Parquet file that `choose` takes of all names. Raises RunFolderError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = choose(file.schema_arrow.names)
            # Without threads: where the system gives Arrow none, `read_table` waits for ever.
            table = file.read(names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not readable: {' '.join(str(error).split())}") from None
    if lacking := [name for name in names if name not in table.column_names]:
        raise RunFolderError(f"{path}: has no column {lacking[0]}")
    return {name: table.column(name).to_numpy() for name in names}


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes it, synced, when the block ends well."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        yield tmp
        with tmp.open("rb") as file:
            os.fsync(file.fileno())
        tmp.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunFolderError(f"{path}: cannot be written: {reason}") from None
    finally:
        with suppress(OSError):
            tmp.unlink(missing_ok=True)
