"""Bytes of many tensors from their files into one piece of memory, by several threads.

Plain reads, not the memory-mapped files: a thread that reads 16 MiB at a time neither faults page by
page nor holds the interpreter, and a fast disk wants several requests at once.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from scoremode.checkpoint.header import TensorInfo
from scoremode.checkpoint.plain import read_at
from scoremode.errors import CheckpointError

__all__ = ["Block", "Reader"]

# Of a tensor's place in its block: what any kernel's widest loads need.
_ALIGNMENT = 256
_THREADS = 8
_REQUEST = 1 << 24


@dataclass(frozen=True)
class Block:
    """Tensors side by side: `tensors` name → its first byte's place, and its header; `bytes` in all."""

    tensors: dict[str, tuple[int, TensorInfo]]
    bytes: int

    @classmethod
    def of(cls, infos: Sequence[TensorInfo]) -> "Block":
        at, tensors = 0, {}
        # In the order of the files, so that they are read from front to back.
        for info in sorted(infos, key=lambda i: (str(i.file), i.begin)):
            tensors[info.name] = (at, info)
            at += -(-info.bytes // _ALIGNMENT) * _ALIGNMENT
        return cls(tensors, at)


class Reader:
    """Threads that read, and the files they have open."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "scoremode-read")
        self._files: dict[Path, int] = {}

    def fill(self, memory: torch.Tensor, block: Block, begin: int) -> None:
        """Fills `memory` uint8 [n] with the block's bytes from `begin` on.

        Raises CheckpointError.
        """
        view, end = memory.numpy().data, begin + len(memory)
        requests = []
        for at, info in block.tensors.values():
            low, high = max(at, begin), min(at + info.bytes, end)
            for start in range(low, high, _REQUEST):
                stop = min(start + _REQUEST, high)
                part = view[start - begin : stop - begin]
                requests.append((info, info.begin + start - at, part))
        for info, _, _ in requests:
            self._open(info.file)
        for done in [self._threads.submit(self._read, *request) for request in requests]:
            done.result()

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        while self._files:
            os.close(self._files.popitem()[1])

    def _open(self, file: Path) -> None:
        if file not in self._files:
            try:
                self._files[file] = os.open(file, os.O_RDONLY)
            except OSError as error:
                raise CheckpointError(f"{file}: {error.strerror}") from None

    def _read(self, info: TensorInfo, offset: int, part: memoryview) -> None:
        try:
            whole = read_at(self._files[info.file], part, offset)
        except OSError as error:
            raise CheckpointError(f"{info.file}: {error.strerror}") from None
        if not whole:
            raise CheckpointError(f"{info.file}: tensor {info.name}: the file has become shorter")
