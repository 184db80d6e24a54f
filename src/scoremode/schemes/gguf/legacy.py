"""ggml's first types: blocks of 32 under a scale in float16, and one minimum maybe.

Q4_0 and Q5_0 hold codes plus half of their range, Q4_1 and Q5_1 plain ones and a minimum. The low
nibbles of 16 bytes are the first half of a block; the fifth bits lie apart, in order.
Source: gguf 0.19, `quants`.
"""

from functools import lru_cache

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf.parts import BlockType, Scales, halves, spread, taken

__all__ = ["LEGACY"]


def _q4_0(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _nibbles(blocks, 2, scratch).sub_(8).view(torch.int8)


def _q4_1(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _nibbles(blocks, 4, scratch).view(torch.int8)


def _q5_0(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _five_bits(blocks, 2, scratch).sub_(16).view(torch.int8)


def _q5_1(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _five_bits(blocks, 4, scratch).view(torch.int8)


def _q8_0(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return taken(blocks, 2, 34, scratch).view(torch.int8)


def _nibbles(blocks: torch.Tensor, begin: int, scratch: Scratch) -> torch.Tensor:
    out = scratch.get("codes", (len(blocks), 32), torch.uint8, blocks.device)
    return spread(taken(blocks, begin, begin + 16, scratch), 4, 16, out, scratch)


def _five_bits(blocks: torch.Tensor, begin: int, scratch: Scratch) -> torch.Tensor:
    """Fifth bits from the byte `begin` on, nibbles behind them."""
    out = _nibbles(blocks, begin + 4, scratch)
    index = scratch.get("index", (len(blocks), 4), torch.int32, blocks.device)
    index.copy_(blocks[:, begin : begin + 4])
    fifth = scratch.get("fifth", (index.numel(),), torch.int64, blocks.device)
    torch.index_select(_fifth_bits(blocks.device), 0, index.view(-1), out=fifth)
    return out.bitwise_or_(fifth.view(torch.uint8).view(out.shape))


@lru_cache(maxsize=8)
def _fifth_bits(device: torch.device) -> torch.Tensor:
    """[256]: a byte's bits, from the lowest one on, each as the fifth of a byte of an int64."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return (bits << 4).to(torch.uint8).view(torch.int64).view(-1).to(device)


def _scale(blocks: torch.Tensor) -> Scales:
    return Scales(halves(blocks, 0))


def _scale_and_minimum(blocks: torch.Tensor) -> Scales:
    return Scales(halves(blocks, 0), halves(blocks, 2))


LEGACY = (
    BlockType("Q4_0", 32, 8, _q4_0, _scale),
    BlockType("Q4_1", 32, 15, _q4_1, _scale_and_minimum, has_minimum=True),
    BlockType("Q5_0", 32, 16, _q5_0, _scale),
    BlockType("Q5_1", 32, 31, _q5_1, _scale_and_minimum, has_minimum=True),
    BlockType("Q8_0", 32, 128, _q8_0, _scale),
)
