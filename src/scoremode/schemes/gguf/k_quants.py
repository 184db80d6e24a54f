"""ggml's K-quants: blocks of 256, whose groups' scales are integers of 4 to 8 bits under one float16.

Q2_K, Q4_K and Q5_K have plain codes, and for each group a minimum that is subtracted: an integer
under a second float16. Q3_K and Q6_K hold codes plus half of their range.
Source: gguf 0.19, `quants`.
"""

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf.parts import BlockType, Scales, halves, spread, taken

__all__ = ["K_QUANTS"]

_VALUES = 256


def _q2_k(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    out = _codes(blocks, scratch)
    return spread(taken(blocks, 16, 80, scratch), 2, 32, out, scratch).view(torch.int8)


def _q3_k(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The third bit is set where nothing is to be subtracted."""
    out = _codes(blocks, scratch)
    spread(taken(blocks, 32, 96, scratch), 2, 32, out, scratch)
    third = scratch.get("high", tuple(out.shape), torch.uint8, blocks.device)
    spread(taken(blocks, 0, 32, scratch), 1, 32, third, scratch, to=2)
    return out.bitwise_or_(third).sub_(4).view(torch.int8)


def _q4_k(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    out = _codes(blocks, scratch)
    return spread(taken(blocks, 16, 144, scratch), 4, 32, out, scratch).view(torch.int8)


def _q5_k(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    out = _codes(blocks, scratch)
    spread(taken(blocks, 48, 176, scratch), 4, 32, out, scratch)
    fifth = scratch.get("high", tuple(out.shape), torch.uint8, blocks.device)
    spread(taken(blocks, 16, 48, scratch), 1, 32, fifth, scratch, to=4)
    return out.bitwise_or_(fifth).view(torch.int8)


def _q6_k(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    out = _codes(blocks, scratch)
    spread(taken(blocks, 0, 128, scratch), 4, 64, out, scratch)
    high = scratch.get("high", tuple(out.shape), torch.uint8, blocks.device)
    spread(taken(blocks, 128, 192, scratch), 2, 32, high, scratch, to=4)
    return out.bitwise_or_(high).sub_(32).view(torch.int8)


def _codes(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return scratch.get("codes", (len(blocks), _VALUES), torch.uint8, blocks.device)


def _q2_k_scales(blocks: torch.Tensor) -> Scales:
    codes, factors = blocks[:, :16], halves(blocks, 80, 2)
    return _scales(factors, codes & 15, codes >> 4)


def _q3_k_scales(blocks: torch.Tensor) -> Scales:
    """Low nibbles of 16 scales lie as those of codes do, and so their pairs of high bits."""
    stored = blocks[:, 96:108]
    low, high = stored[:, :8], stored[:, 8:]
    codes = torch.cat([low & 15, low >> 4], 1)
    codes |= torch.cat([(high >> shift & 3) << 4 for shift in (0, 2, 4, 6)], 1)
    return Scales(halves(blocks, 108) * codes.view(torch.int8).sub_(32))


def _six_bit_scales(blocks: torch.Tensor) -> Scales:
    """Four bytes of scales and four of minimums hold 6 bits each, of groups 0 to 3; their two high
    bits, and four bytes of nibbles, a scale's and a minimum's, are those of groups 4 to 7."""
    # Four bytes at a time.
    words = blocks[:, 4:16].clone(memory_format=torch.contiguous_format).view(torch.int32)
    sixes, nibbles = words[:, :2].T, words[:, 2]
    codes = torch.empty((2, len(blocks), 2), dtype=torch.int32, device=blocks.device)
    torch.bitwise_and(sixes, 0x3F3F3F3F, out=codes[:, :, 0])
    high = (sixes >> 2).bitwise_and_(0x30303030)
    high[0] |= nibbles & 0x0F0F0F0F
    high[1] |= (nibbles >> 4).bitwise_and_(0x0F0F0F0F)
    codes[:, :, 1] = high
    factors = halves(blocks, 0, 2)
    factors[:, 1].neg_()
    scale, minimum = codes.view(torch.uint8).float().mul_(factors.T[:, :, None])
    return Scales(scale, minimum)


def _q6_k_scales(blocks: torch.Tensor) -> Scales:
    return Scales(halves(blocks, 208) * blocks[:, 192:208].view(torch.int8))


def _scales(factors: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> Scales:
    """Integers uint8 [n, groups] under `factors` float32 [n, 2]."""
    return Scales(factors[:, :1] * scale, (factors[:, 1:] * minimum).neg_())


K_QUANTS = (
    BlockType("Q2_K", 16, 3, _q2_k, _q2_k_scales, has_minimum=True),
    BlockType("Q3_K", 16, 4, _q3_k, _q3_k_scales),
    BlockType("Q4_K", 32, 15, _q4_k, _six_bit_scales, has_minimum=True),
    BlockType("Q5_K", 32, 31, _q5_k, _six_bit_scales, has_minimum=True),
    BlockType("Q6_K", 16, 32, _q6_k, _q6_k_scales),
)
