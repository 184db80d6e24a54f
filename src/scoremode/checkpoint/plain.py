"""Plain reads of large files, beside their memory-mapped views.

A thread that reads 16 MiB at a time neither faults page by page nor holds the interpreter, and a fast
disk wants several requests at once.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileReader", "Part"]

_REQUEST = 1 << 24


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
