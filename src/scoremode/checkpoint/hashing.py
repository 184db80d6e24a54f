"""Reading all bytes of large files beside a run; hashing lets other threads compute."""

import os
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from scoremode.lib.tasks import Task

__all__ = ["Hashing", "hash_file"]

# Bytes hashed at a time, and files.
_CHUNK = 1 << 22
_MOST_THREADS = 8


class Hashing:
    """sha256 of files, several at a time: one hash is one thread's work, at about 1.5 GB/s.

    Half of the cores take part, so that what runs beside it has the others.
    """

    def __init__(self, files: Sequence[Path]):
        self._files = files
        self._found: dict[Path, str] = {}
        self._stopped = threading.Event()
        # The largest first, since the last one to be done is what is waited for.
        self._left = sorted(files, key=_size)
        threads = min(len(files), _MOST_THREADS, max(1, (os.cpu_count() or 1) // 2))
        self._threads = [Task(self._work) for _ in range(threads)]

    def result(self) -> dict[Path, str]:
        """The hashes in the files' order, when all are there. Raises OSError."""
        for thread in self._threads:
            thread.result()
        assert len(self._found) == len(self._files), "hashes asked for after `stop`"
        return {path: self._found[path] for path in self._files}

    def stop(self) -> None:
        """Ends it where it is; without effect on what is done."""
        self._stopped.set()
        for thread in self._threads:
            thread.wait()

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                path = self._left.pop()
            except IndexError:
                return
            digest = hash_file(path, self._stopped)
            if not self._stopped.is_set():
                self._found[path] = digest


def hash_file(path: Path, stopped: threading.Event | None = None) -> str:
    """sha256 of a file's bytes, or of those read until it is `stopped`. Raises OSError."""
    digest, buffer = sha256(), memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            if stopped is not None and stopped.is_set():
                break
    return digest.hexdigest()


def _size(path: Path) -> int:
    # A file that is gone is found so when it is read.
    return path.stat().st_size if path.exists() else 0
