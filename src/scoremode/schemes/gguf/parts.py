"""What a block of one of ggml's types is made of: integer codes, and a scale and a minimum a group.

A weight is code · scale, or code · scale + minimum, each step rounded in float32. The product of all
types is exact in float32, but for what overflows, so that only the sum rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from scoremode.checkpoint.gguf.types import TYPES
from scoremode.schemes.base import Scratch

__all__ = ["BlockType", "Scales", "halves", "spread", "taken"]


class Scales(NamedTuple):
    """Of blocks [n, …], for each group of a block's values.

    - `scale` float32 [n, groups].
    - `minimum` float32 [n, groups]: what is added to code times scale; None for types without.
    """

    scale: torch.Tensor
    minimum: torch.Tensor | None = None


@dataclass(frozen=True)
class BlockType:
    """One of ggml's types.

    - `group`: values that share a scale.
    - `limit`: the largest magnitude of a code.
    - `codes`: uint8 [n, bytes] to int8 [n, values], in the order of the weight's columns, valid until
      its scratch memory is used again.
    - `scales`: the same bytes to a group's scale and minimum.
    - `has_minimum`: whether there are minimums.
    """

    name: str
    group: int
    limit: int
    codes: Callable[[torch.Tensor, Scratch], torch.Tensor]
    scales: Callable[[torch.Tensor], Scales]
    has_minimum: bool = False

    @property
    def values(self) -> int:
        """Values of a block."""
        return TYPES[self.name].values

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return TYPES[self.name].bytes


def halves(blocks: torch.Tensor, byte: int, count: int = 1) -> torch.Tensor:
    """float32 [n, count] of the float16 that begin at an even `byte` of each block."""
    return blocks.view(torch.float16)[:, byte // 2 : byte // 2 + count].float()


def taken(
    blocks: torch.Tensor, begin: int, end: int, scratch: Scratch, role: str = "taken"
) -> torch.Tensor:
    """uint8 [n, end − begin]: these bytes of each block beside each other, for what a vector unit does
    with bytes in a row takes a twentieth of the time that it does with a few here and a few there."""
    out = scratch.get(role, (len(blocks), end - begin), torch.uint8, blocks.device)
    return out.copy_(blocks[:, begin:end])


def spread(
    packed: torch.Tensor, bits: int, run: int, out: torch.Tensor, scratch: Scratch, to: int = 0
) -> torch.Tensor:
    """Fills `out` uint8 [n, values] with codes of `bits`, moved up by `to` bits, and returns it.

    `packed` uint8 [n, bytes] is contiguous, whole runs of `run` bytes and whole words of four. A run
    holds one code after the other in the lowest bits of its bytes, then the next `run` codes in the
    bits above, and so on.
    """
    count = 8 // bits
    by_run = out.view(len(packed), -1, count, run)
    part = scratch.get("part", tuple(packed.shape), torch.uint8, packed.device)
    # Four bytes at a time: what comes from a byte's neighbour lies outside of the mask.
    given, wide = packed.view(torch.int32), part.view(torch.int32)
    mask = int.from_bytes(bytes([((1 << bits) - 1) << to] * 4), "little", signed=True)
    for nth in range(count):
        if (shift := nth * bits - to) >= 0:
            torch.bitwise_right_shift(given, shift, out=wide)
        else:
            torch.bitwise_left_shift(given, -shift, out=wide)
        wide.bitwise_and_(mask)
        by_run[:, :, nth] = part.view(len(packed), -1, run)
    return out
