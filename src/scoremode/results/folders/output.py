"""A file or a folder that a user has named as an output: a file is replaced when it is whole, if it is
a file at all.

A device, a pipe, or what this process's stdout leads to can only be written to: a rename would put a
file in its place.
"""

import errno
import os
import stat
from pathlib import Path
from typing import IO

from scoremode.errors import RunFolderError
from scoremode.lib.files import write_text

__all__ = ["check_folder", "opened_through", "replaceable", "write_output"]


def check_folder(path: Path) -> None:
    """Raises RunFolderError where `-o` names what is there and is no folder, or a path below that."""
    # os.path's answer False for a name too long or a loop of links, where Path's raise.
    for place in (path, *path.parents):
        if os.path.isdir(place):  # noqa: PTH112
            return
        if os.path.lexists(place):
            named = "" if place == path else f"{place} "
            if not os.path.exists(place):  # noqa: PTH110
                target = os.readlink(place)  # noqa: PTH115
                raise RunFolderError(
                    f"-o {path}: {named}is a link, and its target {target} is missing"
                )
            raise RunFolderError(f"-o {path}: {named}is not a folder")


def replaceable(path: Path) -> Path | None:
    """The path to rename a whole file to, so that a link stays one; None where `path` itself has to be
    written to.

    Raises OSError.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode) or _is_open(found):
        return None
    return Path(os.path.realpath(path))


def opened_through(path: Path) -> IO[bytes]:
    """Opens what is no replaceable file, to write to. Raises OSError."""
    # Behind what stdout's file has already; for the rest it makes no difference.
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb")


def write_output(path: Path, text: str) -> None:
    """Writes `text` to `path`; a regular file has all of it, or what it had before.

    Raises RunFolderError.
    """
    try:
        target = replaceable(path)
        if target is None:
            with opened_through(path) as file:
                file.write(text.encode(errors="backslashreplace"))
            return
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}") from None
    write_text(target, text)


def _is_open(found: os.stat_result) -> bool:
    """Tells whether `found` is what stdout or stderr leads to, as /dev/stdout is."""
    for number in (1, 2):
        try:
            if os.path.samestat(found, os.fstat(number)):
                return True
        except OSError:
            # This one is closed.
            continue
    return False
