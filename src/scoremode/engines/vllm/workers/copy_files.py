"""A worker's own view of the checkpoint's files: where it is another one than the driver's, their bytes
are hashed on its node, beside its work."""

import threading
from collections.abc import Sequence
from pathlib import Path

from scoremode.checkpoint.bulk_io import Hashing

__all__ = ["CopyHashes", "View", "view_of"]

# Of each file: the running kernel, then device, inode, bytes and nanoseconds of its last change. Who
# sees the same numbers sees the same file.
View = list[list[str | int] | None]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def view_of(paths: Sequence[str]) -> View:
    """The view of files; None for one that can't be looked at."""
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
    found: View = []
    for path in map(Path, paths):
        try:
            at = path.stat()
        except OSError:
            found.append(None)
            continue
        found.append([boot, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns])
    return found


class CopyHashes:
    """sha256 of a node's files in the order of `paths`, begun at once."""

    def __init__(self, paths: Sequence[str]):
        self._paths, self._before = list(paths), view_of(paths)
        self._found: list[str] | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def result(self) -> list[str] | None:
        """A digest of each file, or `missing`, or `changed` while it was read; None until all are
        there."""
        return self._found

    def _work(self) -> None:
        there = [path for path, seen in zip(self._paths, self._before, strict=True) if seen]
        try:
            digests = {str(p): d for p, d in Hashing([Path(p) for p in there]).result().items()}
        except OSError:
            # Gone since: the views differ.
            digests = {}
        found = []
        views = zip(self._paths, self._before, view_of(self._paths), strict=True)
        for path, before, after in views:
            same = before == after and path in digests
            found.append("missing" if before is None else digests[path] if same else "changed")
        self._found = found
