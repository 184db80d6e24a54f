"""Bytes of many tensors from their files into one piece of memory, by several threads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scoremode.checkpoint.bulk_io import FileReader, Part
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError

__all__ = ["Block", "Reader"]

# Of a tensor's place in its block: what any kernel's widest loads need.
_ALIGNMENT = 256
_THREADS = 8


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


class Reader(FileReader):
    """Threads that read blocks of tensors."""

    def __init__(self) -> None:
        super().__init__(_THREADS, "scoremode-read", CheckpointError)

    def fill(self, memory: torch.Tensor, block: Block, begin: int) -> None:
        """Fills `memory` uint8 [n] with the block's bytes from `begin` on.

        Raises CheckpointError.
        """
        view, end = memory.numpy().data, begin + len(memory)
        parts = []
        for at, info in block.tensors.values():
            low, high = max(at, begin), min(at + info.bytes, end)
            if low < high:
                name = f"{info.file}: tensor {info.name}: the file"
                part = view[low - begin : high - begin]
                parts.append(Part(info.file, info.begin + low - at, part, name))
        self.read(parts)
