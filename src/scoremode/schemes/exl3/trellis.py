"""Trellis codes of EXL3: the inner weight, whose values are those of a procedural codebook.

A tile of 16 inputs × 16 outputs is one ring of 256 · K bits. The value at place t is the codebook's for
the 16 bits that end with bit (t + 1) · K, so that neighbours share 16 − K bits of their codes. Bits are
counted from the highest of each 32-bit word on; places are in the order in which a tensor core's
fragment has them, a permutation of the bits of t: from the lowest one they are input 0 and 3, output 3,
input 1 and 2, output 0, 1 and 2.
Source: exllamav3 1.4.1, `exllamav3_ext/quant/{codebook,exl3_dq}.cuh`, `reconstruct.cu`.
"""

from functools import lru_cache

import torch

from scoremode.schemes.base import Scratch

__all__ = ["ADDED", "BLOCK", "CODEBOOKS", "MULTIPLIERS", "TILE", "codebook_values", "inner_weight"]

TILE = 16
# Inputs, and outputs, that are rotated together.
BLOCK = 128
# By the names that a config has; all but the first have a tensor that marks it, which holds the
# multiplier of its codes.
CODEBOOKS = ("3inst", "mcg", "mul1")
MULTIPLIERS = {"3inst": 89226354, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
ADDED = {"3inst": 64248484, "mcg": 0, "mul1": 0}


@lru_cache(maxsize=6)
def codebook_values(codebook: str, device: torch.device) -> torch.Tensor:
    """float32 [65536]: the values of all codes, each of them a half's."""
    codes = torch.arange(1 << 16) * MULTIPLIERS[codebook] + ADDED[codebook] & 0xFFFFFFFF
    if codebook == "mul1":
        # 1024 and the sum of four bytes, times 1774 · 2^−18, less 1329 · 2^−7: rounded once.
        total = ((codes.unsqueeze(1) >> torch.tensor((0, 8, 16, 24))) & 0xFF).sum(1) + 1024
        values = (total * 1774 - 1329 * 2048).double().mul_(2.0**-18).half()
    else:
        # Two halves whose signs and lower bits are the code's, added.
        bits = (codes & 0x8FFF8FFF) ^ 0x3B603B60
        high, low = (part.to(torch.uint16).view(torch.half) for part in (bits >> 16, bits & 0xFFFF))
        values = (high.float() + low.float()).half()
    return values.float().to(device)


def inner_weight(trellis: torch.Tensor, values: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """float32 [128, I / 128, O] of int16 `trellis` [I / 16, O / 16, 16 · K]: by an input's place in its
    block, by the block, and by output. Valid until the next call.

    I is a multiple of 128; `values` [65536] are the codebook's.
    """
    rows, columns, width = trellis.shape
    bits, device = width // TILE, trellis.device
    # A copy: what is stored need not begin at a whole word.
    words = trellis.clone(memory_format=torch.contiguous_format).view(torch.int32)
    # Each half of a word, behind the half before it.
    pairs = scratch.get("pairs", (*words.shape, 2), torch.int32, device)
    before = words.roll(1, 2).bitwise_left_shift_(16)
    pairs[..., 0] = before.bitwise_or_((words >> 16).bitwise_and_(0xFFFF))
    pairs[..., 1] = words
    # [block, tile in it, tile of outputs, output 0-2, input 2, word of 16 places]
    source = pairs.view(rows // 8, 8, columns, 8, 2, bits).permute(1, 4, 0, 2, 3, 5)
    shape = (BLOCK, rows // 8, columns * TILE)
    index = scratch.get("index", shape, torch.int32, device)
    # [tile in the block, input 3, 2, 1, 0, block, tile of outputs, output 3, output 0-2]
    target = index.view(8, 2, 2, 2, 2, rows // 8, columns, 2, 8)
    for place in range(TILE):
        input_0, input_3, output_3, input_1 = ((place >> bit) & 1 for bit in range(4))
        last = (place + 1) * bits
        word = (last - 1) // 16
        torch.bitwise_right_shift(
            source[..., word],
            16 * (word + 1) - last,
            out=target[:, input_3, :, input_1, input_0, :, :, output_3],
        )
    index.bitwise_and_(0xFFFF)
    out = scratch.get("inner", shape, torch.float32, device)
    torch.index_select(values, 0, index.view(-1), out=out.view(-1))
    return out
