"""Folders that a user's paths stand for: where a run is written, and the runs that are read.

A path that is named is taken as it is, and whoever opens it refuses it where it can't be read. In a
folder that holds runs (`runs/`, a sweep's output, a demo's) those that are done count, and the rest
is told.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from scoremode.errors import RunFolderError, UsageError
from scoremode.lib.files import write_text
from scoremode.results.folders.store import RECORD, read_record
from scoremode.results.ladder import read_ladder, step_folders
from scoremode.results.record.checks import undone

# A sweep's output holds runs, a demo's a folder of runs.
_DEPTH = 2
# A sweep's manifest lies beside its runs, and is among what `runs/*` names.
MANIFEST = "sweep.json"


def run_folders(
    paths: Sequence[Path],
    notify: Callable[[str], None] = lambda _: None,
    *,
    unfinished: bool = False,
) -> list[Path]:
    """The run folders that `paths` name or hold, each once, in the order of `paths`; those in one
    folder by their names.

    - `notify`: is told of each run in a folder that is left out, in a line.
    - `unfinished`: takes those in a folder that aren't done, too.

    A folder is searched two levels deep, never inside a run. In a folder with runs against a base, kept
    references are left out: what they measured is in those runs. Of a ladder's folder they are the runs
    of its steps against the top.

    Raises RunFolderError for a path that is neither a run nor holds one, UsageError for a run that is
    named twice.
    """
    if len(paths) > 1:
        paths = [path for path in paths if path.name != MANIFEST or not path.is_file()]
    named = _named(paths)
    found: dict[str, Path] = {}
    for path in paths:
        if _place(path) in named:
            found.setdefault(_place(path), path)
            continue
        for run in _held(path, notify, unfinished):
            if (place := _place(run)) not in named:
                found.setdefault(place, run)
    return list(found.values())


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """The run folders among `paths`, by where they lead."""
    named: dict[str, Path] = {}
    for path in filter(_is_run, paths):
        if (place := _place(path)) in named:
            raise UsageError(f"the same run twice: {named[place]} and {path}")
        named[place] = path
    return named


def _held(path: Path, notify: Callable[[str], None], unfinished: bool) -> list[Path]:
    """The runs in a folder that is none itself. Raises RunFolderError where there is none."""
    if not os.path.isdir(path):  # noqa: PTH112
        there = os.path.lexists(path)
        raise RunFolderError(f"{path}: {'is no folder' if there else 'is not there'}")
    if not unfinished and (ladder := read_ladder(path)) and (steps := step_folders(path, ladder)):
        return steps
    records: dict[Path, dict[str, Any]] = {}
    left: list[str] = []
    for folder in _search(path, _DEPTH, left):
        try:
            record = read_record(folder)
        except RunFolderError as error:
            left.append(str(error))
            continue
        if unfinished or record.get("status") == "done":
            records[folder] = record
        else:
            left.append(f"{folder}: {undone(record)}")
    if not records:
        why = f": {left[0]}" + f", and {len(left) - 1} more" * (len(left) > 1) if left else ""
        raise RunFolderError(f"{path}: is no run, and holds no finished one{why}")
    for words in left:
        notify(f"left out: {words}")
    compared = any("reference" in record for record in records.values())
    return [f for f, record in records.items() if not (compared and "kept" in record)]


def _search(folder: Path, depth: int, left: list[str]) -> list[Path]:
    """The run folders in `folder`, at most so many levels down, by their names; what can't be read is
    added to `left`."""
    found: list[Path] = []
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        left.append(f"{folder}: cannot be read: {error.strerror}")
        return []
    for path in inside:
        if _is_run(path):
            found.append(path)
        elif depth > 1 and os.path.isdir(path) and not path.is_symlink():  # noqa: PTH112
            found += _search(path, depth - 1, left)
    return found


# os.path's answer where Path's raise: for a name too long, a loop of links, a closed folder.


def _is_run(path: Path) -> bool:
    return os.path.isfile(path / RECORD)  # noqa: PTH113


def _place(path: Path) -> str:
    return os.path.realpath(path)


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
