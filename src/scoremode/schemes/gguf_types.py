"""ggml's block types but for the I-quants: integer codes, and a scale and a minimum a group.

A weight is code · scale, or code · scale + minimum, each step rounded in float32. The product of all
types is exact in float32, but for what overflows, so that only the sum rounds.

The first types: blocks of 32 under a scale in float16, and one minimum maybe.

Q4_0 and Q5_0 hold codes plus half of their range, Q4_1 and Q5_1 plain ones and a minimum. The low
nibbles of 16 bytes are the first half of a block; the fifth bits lie apart, in order.

K-quants: blocks of 256, whose groups' scales are integers of 4 to 8 bits under one float16.

Q2_K, Q4_K and Q5_K have plain codes, and for each group a minimum that is subtracted: an integer
under a second float16. Q3_K and Q6_K hold codes plus half of their range.

Ternary types: blocks of 256 codes −1, 0 and 1 under a float16.

TQ2_0 has them plus one in two bits. A byte of TQ1_0 is a fraction of 256 whose digits in base 3 are
five of them, or four, each plus one: the fraction times 3^k, less what is whole, begins with digit k.

Types of four bits that stand for sixteen values: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.

Those of the first two are integers that a search found. Those of the others are e2m1 doubled, under
half of the stored scale: a power of two in a byte (E8M0), or e4m3 without a sign.
Source: gguf 0.19, `quants`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch

from scoremode.checkpoint.gguf.header import TYPES
from scoremode.schemes.base import Scratch


class Scales(NamedTuple):
    """Scales and minimums of blocks [n, …], for each group of a block's values.

    - `scale` float32 [n, groups].
    - `minimum` float32 [n, groups]: what is added to code times scale; None for types without.
    """

    scale: torch.Tensor
    minimum: torch.Tensor | None = None


_Codes = Callable[[torch.Tensor, Scratch], torch.Tensor]
_ToScales = Callable[[torch.Tensor], Scales]


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
    codes: _Codes
    scales: _ToScales
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


class _Bits(NamedTuple):
    """The place of codes of `bits` in a block: runs of `run` bytes in those from `begin` to `end`,
    moved up by `to`; see `spread`."""

    begin: int
    end: int
    bits: int
    run: int
    to: int = 0


def _integers(
    blocks: torch.Tensor,
    scratch: Scratch,
    *,
    low: _Bits,
    high: _Bits | None = None,
    fifth: int | None = None,
    less: int = 0,
) -> torch.Tensor:
    """int8 [n, values] less `less`, of bits at `low`, and more of each at `high`; or a `fifth` bit of
    each, which lie in order in the four bytes from this one on."""
    n, device = len(blocks), blocks.device
    shape = n, (low.end - low.begin) * 8 // low.bits
    out = scratch.get("codes", shape, torch.uint8, device)
    for bits, into in ((low, out), (high, None)):
        if bits is not None:
            into = scratch.get("high", shape, torch.uint8, device) if into is None else into
            packed = taken(blocks, bits.begin, bits.end, scratch)
            spread(packed, bits.bits, bits.run, into, scratch, bits.to)
            if into is not out:
                out.bitwise_or_(into)
    if fifth is not None:
        index = scratch.get("index", (n, 4), torch.int32, device)
        index.copy_(blocks[:, fifth : fifth + 4])
        words = scratch.get("fifth", (index.numel(),), torch.int64, device)
        torch.index_select(_fifth_bits(device), 0, index.view(-1), out=words)
        out.bitwise_or_(words.view(torch.uint8).view(shape))
    return (out.sub_(less) if less else out).view(torch.int8)


def _codes_at(low: _Bits, high: _Bits | None = None, **others: int) -> _Codes:
    return partial(_integers, low=low, high=high, **others)


@lru_cache(maxsize=8)
def _fifth_bits(device: torch.device) -> torch.Tensor:
    """[256]: a byte's bits, from the lowest one on, each as the fifth of a byte of an int64."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return (bits << 4).to(torch.uint8).view(torch.int64).view(-1).to(device)


def _scale_at(byte: int) -> _ToScales:
    return lambda blocks: Scales(halves(blocks, byte))


def _scale_and_minimum(blocks: torch.Tensor) -> Scales:
    return Scales(halves(blocks, 0), halves(blocks, 2))


LEGACY = (
    BlockType("Q4_0", 32, 8, _codes_at(_Bits(2, 18, 4, 16), less=8), _scale_at(0)),
    BlockType("Q4_1", 32, 15, _codes_at(_Bits(4, 20, 4, 16)), _scale_and_minimum, has_minimum=True),
    BlockType("Q5_0", 32, 16, _codes_at(_Bits(6, 22, 4, 16), fifth=2, less=16), _scale_at(0)),
    BlockType(
        "Q5_1",
        32,
        31,
        _codes_at(_Bits(8, 24, 4, 16), fifth=4),
        _scale_and_minimum,
        has_minimum=True,
    ),
    BlockType(
        "Q8_0", 32, 128, lambda b, scratch: taken(b, 2, 34, scratch).view(torch.int8), _scale_at(0)
    ),
)


def _q2_k_scales(blocks: torch.Tensor) -> Scales:
    codes, factors = blocks[:, :16], halves(blocks, 80, 2)
    return Scales(factors[:, :1] * (codes & 15), (factors[:, 1:] * (codes >> 4)).neg_())


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


# The third bit of Q3_K is set where nothing is to be subtracted.
_Q3_K = _codes_at(_Bits(32, 96, 2, 32), _Bits(0, 32, 1, 32, to=2), less=4)
_Q5_K = _codes_at(_Bits(48, 176, 4, 32), _Bits(16, 48, 1, 32, to=4))
_Q6_K = _codes_at(_Bits(0, 128, 4, 64), _Bits(128, 192, 2, 32, to=4), less=32)
K_QUANTS = (
    BlockType("Q2_K", 16, 3, _codes_at(_Bits(16, 80, 2, 32)), _q2_k_scales, has_minimum=True),
    BlockType("Q3_K", 16, 4, _Q3_K, _q3_k_scales),
    BlockType("Q4_K", 32, 15, _codes_at(_Bits(16, 144, 4, 32)), _six_bit_scales, has_minimum=True),
    BlockType("Q5_K", 32, 31, _Q5_K, _six_bit_scales, has_minimum=True),
    BlockType("Q6_K", 16, 32, _Q6_K, _q6_k_scales),
)


_TERNARY_VALUES = 256
# Bytes of a run, of all of them, and how many digits each has.
_RUNS = ((32, 5), (16, 5), (4, 4))


def _tq1_0(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    packed, n = taken(blocks, 0, 52, scratch), len(blocks)
    begun = scratch.get("codes", (n, _TERNARY_VALUES), torch.uint8, blocks.device)
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


TERNARY = (
    BlockType("TQ1_0", _TERNARY_VALUES, 1, _tq1_0, _scale_at(52)),
    # 3 stands for 2, which no quantizer writes.
    BlockType("TQ2_0", _TERNARY_VALUES, 2, _codes_at(_Bits(0, 64, 2, 32), less=1), _scale_at(64)),
)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# By type, what its sixteen codes stand for.
VALUES = {"IQ4_NL": _IQ4, "IQ4_XS": _IQ4, "MXFP4": _E2M1, "NVFP4": _E2M1}


def _values(begin: int, end: int, run: int, values: tuple[int, ...]) -> _Codes:
    """int8 [n, codes] of nibbles in runs of `run` bytes; two of them are looked up at a time."""

    def codes(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        shape, device = (len(blocks), 2 * (end - begin)), blocks.device
        nibbles = scratch.get("nibbles", shape, torch.uint8, device)
        spread(taken(blocks, begin, end, scratch), 4, run, nibbles, scratch)
        index = scratch.get("index", (nibbles.numel() // 2,), torch.int32, device)
        index.copy_(nibbles.view(torch.int16).view(-1))
        out = scratch.get("codes", shape, torch.int8, device)
        torch.index_select(_pairs(values, device), 0, index, out=out.view(torch.int16).view(-1))
        return out

    return codes


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
    BlockType("IQ4_NL", 32, 127, _values(2, 18, 16, _IQ4), _scale_at(0)),
    BlockType("IQ4_XS", 32, 127, _values(8, 136, 16, _IQ4), _iq4_xs_scales),
    BlockType("MXFP4", 32, 12, _values(1, 17, 16, _E2M1), _mxfp4_scales),
    BlockType("NVFP4", 16, 12, _values(4, 36, 8, _E2M1), _nvfp4_scales),
)
