"""Reads of large files by several threads: into memory, beside memory-mapped views, and for hashes.

A thread that reads 16 MiB at a time neither faults page by page nor holds the interpreter, and a fast
disk wants several requests at once. Hashing lets other threads compute.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from scoremode.lib.tasks import Task

_REQUEST = 1 << 24
# Bytes hashed at a time, and files.
_CHUNK = 1 << 22
_MOST_THREADS = 8
# Seconds between two looks at how far hashes are.
_LOOK = 0.2


@dataclass(frozen=True)
class Part:
    """The bytes of the file at `path` from `begin` on that `memory` is to hold.

    `name`: what an error says of a file that has become shorter, such as `a.bin: tensor x: the file`.
    """

    path: Path
    begin: int
    memory: memoryview
    name: str


class FileReader:
    """Threads called `name` that read parts of files, and the files they have open.

    `error`: makes what is raised of a line about a file.
    """

    def __init__(self, threads: int, name: str, error: Callable[[str], Exception]):
        self._threads = ThreadPoolExecutor(threads, name)
        self._error = error
        self._files: dict[Path, int] = {}

    def read(self, parts: Iterable[Part]) -> None:
        """Fills the memory of all `parts`. Raises its error of a file that can't be read."""
        requests = []
        for part in parts:
            descriptor = self._descriptor(part.path)
            requests += [(part, descriptor, at) for at in range(0, len(part.memory), _REQUEST)]
        for done in [self._threads.submit(self._read, *request) for request in requests]:
            done.result()

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self._threads.shutdown(wait=True)
        self._close_files()

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def _descriptor(self, path: Path) -> int:
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise self._error(f"{path}: {error.strerror}") from None
        return self._files[path]

    def _read(self, part: Part, descriptor: int, at: int) -> None:
        end = min(at + _REQUEST, len(part.memory))
        while at < end:
            try:
                count = os.preadv(descriptor, [part.memory[at:end]], part.begin + at)
            except OSError as error:
                raise self._error(f"{part.path}: {error.strerror}") from None
            if not count:
                raise self._error(f"{part.name} has become shorter")
            at += count


class Hashing:
    """sha256 of files, several at a time: one hash is one thread's work, at about 1.5 GB/s.

    Half of the cores take part, so that what runs beside it has the others.
    """

    def __init__(self, files: Sequence[Path]):
        self._files = files
        self._found: dict[Path, str] = {}
        self._read = dict.fromkeys(files, 0)
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

    def follow(self, progress: Callable[[float, int], None]) -> None:
        """Returns when it is done, or has failed; tells the bytes that are newly read, of all."""
        told, total = 0, sum(map(_size, self._files))
        for thread in self._threads:
            while told < total:
                thread.wait(_LOOK)
                read = sum(self._read.values())
                progress(read - told, total)
                told = read
                if thread.is_done:
                    break

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
            digest = hash_file(path, self._stopped, partial(self._count, path))
            if not self._stopped.is_set():
                self._found[path] = digest

    def _count(self, path: Path, read: int) -> None:
        # Of a file its own thread alone.
        self._read[path] += read


def hash_file(
    path: Path,
    stopped: threading.Event | None = None,
    count: Callable[[int], None] = lambda _: None,
) -> str:
    """sha256 of a file's bytes, or of those read until it is `stopped`; `count` gets the bytes of each
    read. Raises OSError."""
    digest, buffer = sha256(), memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            count(size)
            if stopped is not None and stopped.is_set():
                break
    return digest.hexdigest()


def _size(path: Path) -> int:
    # A file that is gone is found so when it is read.
    return path.stat().st_size if path.exists() else 0
