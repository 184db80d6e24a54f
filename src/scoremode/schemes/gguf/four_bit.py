"""ggml's types of four bits that stand for sixteen values: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.

Those of the first two are integers that a search found. Those of the others are e2m1 doubled, under
half of the stored scale: a power of two in a byte (E8M0), or e4m3 without a sign.
Source: gguf 0.19, `quants`.
"""

from functools import lru_cache

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf.parts import BlockType, Scales, halves, spread, taken

__all__ = ["FOUR_BIT", "VALUES"]

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# By type, what its sixteen codes stand for.
VALUES = {"IQ4_NL": _IQ4, "IQ4_XS": _IQ4, "MXFP4": _E2M1, "NVFP4": _E2M1}


def _iq4_nl(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _values(taken(blocks, 2, 18, scratch), 16, _IQ4, scratch)


def _iq4_xs(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _values(taken(blocks, 8, 136, scratch), 16, _IQ4, scratch)


def _mxfp4(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _values(taken(blocks, 1, 17, scratch), 16, _E2M1, scratch)


def _nvfp4(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    return _values(taken(blocks, 4, 36, scratch), 8, _E2M1, scratch)


def _values(
    packed: torch.Tensor, run: int, values: tuple[int, ...], scratch: Scratch
) -> torch.Tensor:
    """int8 [n, codes] of nibbles in runs of `run` bytes; two of them are looked up at a time."""
    shape, device = (len(packed), 2 * packed.shape[1]), packed.device
    codes = spread(packed, 4, run, scratch.get("nibbles", shape, torch.uint8, device), scratch)
    index = scratch.get("index", (codes.numel() // 2,), torch.int32, device)
    index.copy_(codes.view(torch.int16).view(-1))
    out = scratch.get("codes", shape, torch.int8, device)
    torch.index_select(_pairs(values, device), 0, index, out=out.view(torch.int16).view(-1))
    return out


@lru_cache(maxsize=8)
def _pairs(values: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """int16 [0x0F10]: two values as bytes, by their codes as bytes; none where one is no code."""
    pairs = torch.zeros(0x0F10, 2, dtype=torch.int8)
    of_code = torch.tensor(values, dtype=torch.int8)
    for high in range(16):
        pairs[256 * high : 256 * high + 16] = torch.stack([of_code, of_code[high].expand(16)], 1)
    return pairs.view(torch.int16).view(-1).to(device)


def _iq4_xs_scales(blocks: torch.Tensor) -> Scales:
    """Eight scales of 6 bits plus 32: their high bits in two bytes, nibbles in four, each in order."""
    high = blocks[:, 2:4, None] >> _shifts(2, blocks.device) & 3
    low = blocks[:, 4:8, None] >> _shifts(4, blocks.device) & 15
    codes = (high << 4).flatten(1) | low.flatten(1)
    return Scales(halves(blocks, 0) * codes.view(torch.int8).sub_(32))


def _mxfp4_scales(blocks: torch.Tensor) -> Scales:
    return Scales(_half_powers(blocks.device)[blocks[:, :1].int()])


def _nvfp4_scales(blocks: torch.Tensor) -> Scales:
    return Scales(_half_e4m3(blocks.device)[blocks[:, :4].int()])


@lru_cache(maxsize=8)
def _half_powers(device: torch.device) -> torch.Tensor:
    """float32 [256]: 2^(code − 128); there is no NaN."""
    exponents = torch.arange(256) - 128
    return torch.ldexp(torch.ones(256, dtype=torch.float64), exponents).float().to(device)


@lru_cache(maxsize=8)
def _half_e4m3(device: torch.device) -> torch.Tensor:
    """float32 [256]: half of e4m3, whose sign is not read. 0x7F, its NaN, is zero, and 0xFF is not."""
    codes = torch.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7).float()
    fraction = torch.where(exponent == 0, mantissa / 8, 1 + mantissa / 8)
    half = torch.ldexp(fraction, exponent.clamp_min(1) - 8)
    return half.masked_fill_(codes == 0x7F, 0).to(device)


@lru_cache(maxsize=8)
def _shifts(bits: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


FOUR_BIT = (
    BlockType("IQ4_NL", 32, 127, _iq4_nl, lambda blocks: Scales(halves(blocks, 0))),
    BlockType("IQ4_XS", 32, 127, _iq4_xs, _iq4_xs_scales),
    BlockType("MXFP4", 32, 12, _mxfp4, _mxfp4_scales),
    BlockType("NVFP4", 16, 12, _nvfp4, _nvfp4_scales),
)
