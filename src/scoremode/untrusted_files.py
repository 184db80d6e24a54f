"""Reads of files that others wrote: regular files alone, and none larger than its kind ever is.

A folder from elsewhere may hold a pipe where a config belongs, or a link to a device that never ends.
Every error is an OSError with its reason in `strerror`, as of any file that can't be read.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["MOST_JSON", "MOST_TEXT", "check_regular", "read_at_most", "read_regular"]

# The largest tokenizer.json has 40 MB, the largest index 20 MB.
MOST_JSON = 1 << 28
# WikiText-103 has 540 MB.
MOST_TEXT = 1 << 30
_CHUNK = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most`. Raises OSError."""
    check_regular(path, most)
    # Opening a pipe waits for its writer, unless told not to: it may be there by now.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
        _check(os.fstat(file.fileno()), path, most)
        return read_at_most(file, path, most)


def check_regular(path: Path, most: int | None = None) -> None:
    """Raises OSError unless `path` is, or links to, a regular file of at most `most` bytes."""
    _check(path.stat(), path, most)


def read_at_most(file: BinaryIO, name: object, most: int) -> bytes:
    """All that is left of an open file. Raises OSError for more than `most` bytes."""
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        if len(content) > most:
            # A file of the system's says 0 bytes and may not end.
            raise OSError(errno.EFBIG, f"has more than {_size(most)}", str(name))
    return bytes(content)


def _check(found: os.stat_result, path: Path, most: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise OSError(errno.EINVAL, f"is {kind}, not a file", str(path))
    if most is not None and found.st_size > most:
        raise OSError(
            errno.EFBIG, f"has {found.st_size:,} bytes, more than {_size(most)}", str(path)
        )


def _size(count: int) -> str:
    return f"{count >> 20:,} MiB" if count >= 1 << 20 else f"{count:,} bytes"
