"""The runs that a user's paths stand for: run folders, and folders that hold some.

What is named is taken as it is, and whoever opens it refuses it where it can't be read. In a folder
that holds runs (`runs/`, a sweep's output, a demo's) those that are done count, and the rest is told.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError, UsageError
from scoremode.results.folders.store import RECORD, read_record
from scoremode.results.record.checked import undone

__all__ = ["MANIFEST", "run_folders"]

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
    references are left out: what they measured is in those runs.

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
