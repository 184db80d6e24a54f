"""What a stranger may put in the place of a run's file or folder, and what must not change by it."""

import os
import shutil
from pathlib import Path

__all__ = ["KINDS", "put", "snapshot"]

# `moved`: a link to what was there; `link`: to files of somebody else's, of the names that ours have.
KINDS = ("link", "moved", "pipe", "folder", "device", "sparse")
_NAMES = ("notes", "x.tmp", "00000.parquet", "00000.safetensors", "record.json", ".lock")


def put(path: Path, kind: str, outside: Path) -> None:
    """Puts something of that kind in the place of `path`; links lead into the folder `outside`, which
    is made for it."""
    outside.mkdir()
    (outside / "file").write_text("mine")
    (outside / "folder").mkdir()
    for name in _NAMES:
        (outside / "folder" / name).write_text("mine")
    is_folder = path.is_dir() or path.suffix == ".merging" or path.name in ("parts", "states")
    if os.path.lexists(path):
        path.rename(outside / "moved")
    elif is_folder:
        (outside / "moved").mkdir()
    else:
        (outside / "moved").touch()
    if kind == "link":
        path.symlink_to(outside / ("folder" if is_folder else "file"))
    elif kind == "moved":
        path.symlink_to(outside / "moved")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder" and not is_folder:
        shutil.copytree(outside / "folder", path)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 36)


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that lies in a folder: kind and time of each, and what the smaller files hold."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        is_small = not path.is_symlink() and path.is_file() and facts.st_size < 1 << 30
        content = path.read_bytes() if is_small else path.readlink() if path.is_symlink() else ""
        found[str(path.relative_to(folder))] = facts.st_mode, facts.st_mtime_ns, content
    return found
