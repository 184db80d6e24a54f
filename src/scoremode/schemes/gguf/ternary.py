"""ggml's ternary types: blocks of 256 codes −1, 0 and 1 under a float16.

TQ2_0 has them plus one in two bits. A byte of TQ1_0 is a fraction of 256 whose digits in base 3 are
five of them, or four, each plus one: the fraction times 3^k, less what is whole, begins with digit k.
Source: gguf 0.19, `quants`.
"""

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf.parts import BlockType, Scales, halves, spread, taken

__all__ = ["TERNARY"]

_VALUES = 256
# Bytes of a run, of all of them, and how many digits each has.
_RUNS = ((32, 5), (16, 5), (4, 4))


def _tq1_0(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    packed, n = taken(blocks, 0, 52, scratch), len(blocks)
    begun = scratch.get("codes", (n, _VALUES), torch.uint8, blocks.device)
    byte = value = 0
    for run, digits in _RUNS:
        of_run = packed[:, byte : byte + run].contiguous()
        part = scratch.get("part", (n, run), torch.uint8, blocks.device)
        for nth in range(digits):
            # Without what is whole, since a byte has no room for it.
            begun[:, value : value + run] = torch.mul(of_run, 3**nth, out=part)
            value += run
        byte += run
    # The digit is how many thirds of 256 are reached.
    two = torch.ge(begun, 171).view(torch.int8)
    return torch.ge(begun, 86).view(torch.int8).add_(two).sub_(1)


def _tq2_0(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    out = scratch.get("codes", (len(blocks), _VALUES), torch.uint8, blocks.device)
    return spread(taken(blocks, 0, 64, scratch), 2, 32, out, scratch).sub_(1).view(torch.int8)


TERNARY = (
    BlockType("TQ1_0", _VALUES, 1, _tq1_0, lambda blocks: Scales(halves(blocks, 52))),
    # 3 stands for 2, which no quantizer writes.
    BlockType("TQ2_0", _VALUES, 2, _tq2_0, lambda blocks: Scales(halves(blocks, 64))),
)
