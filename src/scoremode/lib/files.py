"""Files where others may have written: the one way to open, create, replace, lock and remove them.

A folder from elsewhere may hold a pipe where a config belongs, a link to a device that never ends, or
one to a file of the user's. So only regular files are opened, none larger than its kind ever is. What
lies in a folder of a format of ours (a run, a reference, a sweep) is never a link, and is opened with
`links=False`; a model's files are, in the hub's cache. What is written gets a name of its own first,
one that nothing else has, so that nobody's file is written over.

Every error of a read, a lock or a removal is an OSError with its reason in `strerror`, as of any file
that can't be read.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from scoremode.errors import RunFolderError

__all__ = [
    "MOST_JSON",
    "MOST_TEXT",
    "Partial",
    "atomic",
    "check_regular",
    "is_held",
    "is_partial",
    "make_folder",
    "open_lock",
    "open_regular",
    "read_at_most",
    "read_regular",
    "remove_folder",
    "take",
    "write_text",
]

# The largest tokenizer.json has 40 MB, the largest index 20 MB.
MOST_JSON = 1 << 28
# WikiText-103 has 540 MB.
MOST_TEXT = 1 << 30
_CHUNK = 1 << 20
# What git has in the place of a file of Git LFS that wasn't fetched: these words, a hash and a size.
_LFS, _MOST_POINTER = b"version https://git-lfs.github.com/spec/", 1024
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFREG: "a file",
}
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.scoremode-tmp", re.DOTALL)
# Bytes of a name that its partial file's keeps: a name has 255 at most.
_KEPT_BYTES = 200
# Seconds that taking a lock tries again: whoever only looks holds it for some microseconds.
_PATIENCE, _PAUSE = 0.2, 0.01


def read_regular(path: Path, most: int, *, links: bool = True) -> bytes:
    """The bytes of a regular file of at most `most`; `links`: or of one that a link leads to. Raises
    OSError."""
    with open_regular(path, most, links=links) as file:
        return read_at_most(file, path, most)


def open_regular(
    path: Path, most: int | None = None, *, links: bool = True, write: bool = False
) -> IO[bytes]:
    """Opens a regular file that is there, of at most `most` bytes; `write`: to change it where it lies.
    Raises OSError."""
    check_regular(path, most, links=links)
    return _opened(path, os.O_RDWR if write else os.O_RDONLY, most, links)


def check_regular(path: Path, most: int | None = None, *, links: bool = True) -> None:
    """Raises OSError unless `path` is a regular file of at most `most` bytes, and no pointer of Git
    LFS's; `links`: or leads to one."""
    found = path.stat(follow_symlinks=links)
    _check(found, path, most)
    if 0 < found.st_size <= _MOST_POINTER:
        with _opened(path, os.O_RDONLY, most, links) as file:
            if file.read(len(_LFS)) == _LFS:
                words = "a Git LFS pointer, not the file itself: fetch it with git lfs pull"
                raise OSError(errno.EINVAL, words, str(path))


def read_at_most(file: BinaryIO | IO[bytes], name: object, most: int) -> bytes:
    """The rest of an open file. Raises OSError for more than `most` bytes."""
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        if len(content) > most:
            # A file of the system's says 0 bytes and may not end.
            raise OSError(errno.EFBIG, f"has more than {_size(most)}", str(name))
    return bytes(content)


class Partial:
    """A new file beside `target`, under a name that nothing else has, which becomes `target` when it is
    whole. What killed processes left of the same target is removed first. Raises OSError.

    - `path`: where it lies meanwhile; `file`: it, open for writing, and locked until it is closed.
    """

    def __init__(self, target: Path):
        self.target = target
        _remove_left(target)
        kept = os.fsdecode(os.fsencode(target.name)[:_KEPT_BYTES])
        while True:
            self.path = target.with_name(f".{kept}.{secrets.token_hex(8)}.scoremode-tmp")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.file = os.fdopen(os.open(self.path, flags, 0o666), "wb")
            if _is_ours(self.file, self.path):
                return
            self.file.close()

    def settle(self) -> None:
        """Makes the whole file be `target`, synced. Raises OSError."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.path.rename(self.target)
        self.file.close()
        folder = os.open(self.target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Removes it, unless it is `target` by now."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.file.close()


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """The place of an empty new file beside `path` that becomes it, synced, when the block ends well.
    Raises RunFolderError."""
    partial = None
    try:
        partial = Partial(path)
        yield partial.path
        partial.settle()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunFolderError(f"{path}: cannot be written: {reason}") from None
    finally:
        if partial is not None:
            partial.discard()


def write_text(path: Path, text: str) -> None:
    """Writes a file that is there whole, or not at all. Raises RunFolderError."""
    with atomic(path) as tmp:
        # A path that is not UTF-8 stands escaped in JSON, and is read back as it was.
        tmp.write_text(text, encoding="utf-8", errors="backslashreplace")


def is_partial(name: str, is_named: Callable[[str], bool]) -> bool:
    """Tells whether `name` is that of a `Partial` whose target's name `is_named`."""
    match = _PARTIAL.fullmatch(name)
    return match is not None and is_named(match["name"])


def make_folder(path: Path, *, below: Path) -> None:
    """Makes the folder `path` with those above it as far as `below`, where they are missing. Raises
    OSError where one of them is a link, or no folder."""
    if path == below:
        return
    make_folder(path.parent, below=below)
    try:
        path.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(mode := path.lstat().st_mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise OSError(errno.ENOTDIR, f"is {kind}, not a folder", str(path)) from None


def remove_folder(path: Path, is_own: Callable[[str], bool]) -> None:
    """Removes what has its own name from the folder `path`, with its partial files, and the folder if
    nothing else is in it. A link is removed, and never what it leads to. Raises OSError."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return path.unlink()
    for inside in sorted(path.iterdir()):
        if is_own(inside.name) or is_partial(inside.name, is_own):
            inside.unlink()
    with suppress(OSError):
        path.rmdir()


def open_lock(path: Path, most: int | None = None) -> IO[bytes]:
    """Opens a file of at most `most` bytes for a lock, made where it is missing; what it holds is left
    alone. Raises OSError."""
    with suppress(FileNotFoundError):
        check_regular(path, most, links=False)
    return _opened(path, os.O_RDWR | os.O_CREAT, most, links=False)


def take(lock: IO[bytes] | int) -> None:
    """Takes the open file or folder for this process alone.

    Raises BlockingIOError where another has it, OSError where it can't be locked.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def is_held(path: Path) -> bool:
    """Tells whether a process holds the lock whose file is `path`. Nothing is written, and no process
    that begins to work meanwhile is turned away.

    Raises OSError where the file is there and can't be read.
    """
    try:
        with open_regular(path, links=False) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _opened(path: Path, flags: int, most: int | None, links: bool) -> IO[bytes]:
    """Opens what was a regular file, and may be something else by now."""
    # A pipe would be waited for until it has another end.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, 0o666)
    try:
        _check(os.fstat(descriptor), path, most)
        return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _remove_left(target: Path) -> None:
    """Removes partial files of `target` that no living process has."""
    kept = os.fsdecode(os.fsencode(target.name)[:_KEPT_BYTES])
    # In a folder that can't be listed, they stay.
    with suppress(OSError):
        for path in target.parent.iterdir():
            if is_partial(path.name, lambda name: name == kept):
                with suppress(OSError), open_regular(path, links=False, write=True) as left:
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


def _is_ours(file: IO[bytes], path: Path) -> bool:
    """Locks a new partial file, and tells whether nobody took it for one that was left meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        # On a file system without locks nobody removes what may be another's.
        return True


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
