"""Files that are on disk whole, or are not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scoremode.errors import RunFolderError

__all__ = ["atomic", "settle", "write_text"]


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes it, synced, when the block ends well."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        yield tmp
        settle(tmp, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunFolderError(f"{path}: cannot be written: {reason}") from None
    finally:
        with suppress(OSError):
            tmp.unlink(missing_ok=True)


def settle(tmp: Path, path: Path) -> None:
    """Makes the whole file `tmp` be `path` in the same folder, synced. Raises OSError."""
    with tmp.open("rb") as file:
        os.fsync(file.fileno())
    tmp.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Writes a file that is there whole, or not at all. Raises RunFolderError."""
    with atomic(path) as tmp:
        # A path that is not UTF-8 stands escaped in JSON, and is read back as it was.
        tmp.write_text(text, encoding="utf-8", errors="backslashreplace")
