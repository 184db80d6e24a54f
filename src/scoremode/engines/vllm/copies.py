"""Copies of the checkpoint on other nodes, compared with the driver's while the model scores.

vLLM's workers read the files of their own node, under the same path. Where a worker sees other files
than the driver's, their bytes are hashed on its node, beside its work. What is scored before it is
known that they are the same is held back: a part on disk never comes from weights that the record does
not name.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scoremode.checkpoint.bulk_io import Hashing
from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import EngineError

# Of each file: the running kernel, then device, inode, bytes and nanoseconds of its last change. Who
# sees the same numbers sees the same file.
View = list[list[str | int] | None]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Seconds between two looks, once there is nothing else to do.
_LOOK = 0.2


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


class Copies:
    """The files of `checkpoint` as the workers see them; hashing begins where they see others.

    - `ask`: a question to every worker, as `Started.ask`.
    """

    def __init__(self, checkpoint: Checkpoint, ask: Callable[..., list[Any]]):
        self._checkpoint, self._ask = checkpoint, ask
        self._paths = [
            str(p.absolute()) for p in (*checkpoint.files.beside, *checkpoint.weight_files)
        ]
        mine, views = view_of(self._paths), ask("scoremode_view_files", self._paths)
        firsts: dict[str, int] = {}
        for worker, view in enumerate(views):
            if view != mine:
                firsts.setdefault(repr(view), worker)
        # One worker of each node, which hashes for the others.
        self._workers = sorted(firsts.values())
        if self._workers:
            ask("scoremode_hash_files", self._paths, self._workers)

    @property
    def count(self) -> int:
        """The number of copies beside the driver's."""
        return len(self._workers)

    def are_known(self, *, wait: bool) -> bool:
        """Tells whether all have been found to be the driver's files, or waits until they are.

        Raises EngineError for one that is not.
        """
        while self._workers:
            answers = self._ask("scoremode_file_hashes")
            if all(answers[worker] is not None for worker in self._workers):
                self._compare(answers)
                self._workers = []
            elif not wait:
                return False
            else:
                time.sleep(_LOOK)
        return True

    def _compare(self, answers: list[Any]) -> None:
        mine = self._checkpoint.hash_files()
        for worker in self._workers:
            node, hashes = answers[worker]
            for (name, digest), theirs in zip(mine.items(), hashes, strict=True):
                if theirs == digest:
                    continue
                known = {"missing": "is not there", "changed": "changed while it was read"}
                what = known.get(theirs, f"has sha256 {theirs[:16]}…, and here {digest[:16]}…")
                raise EngineError(
                    f"{self._checkpoint.path}: on the node {node}, {name} {what}: "
                    "every node needs the same files"
                )
