"""The CUDA decoder of ggml's block types, bit for bit what plain torch gives.

A weight's rows are whole numbers of blocks, one behind the other, and so it is one run of blocks to
it. A thread makes eight values beside each other, which have one scale in all types: it reads their
codes into the bytes of two words, where all eight are moved and masked at once, and writes what they
mean at once. Neighbours read neighbouring bytes of a block, which may begin at any even address (of 18,
34, 110 or 210 bytes), or at an odd one (of 17).

Reads of ggml's blocks for the CUDA decoder: codes and scales, by type.

Eight codes lie in the same bits of eight bytes beside each other, which are moved and masked as two
words.

In the types with codebooks, IQ1, IQ2 and IQ3, a point is eight codes or four, a byte each; signs lie
apart, and four of them are set at once.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOptionalSubscript=false

from functools import lru_cache

import torch
import triton
import triton.language as tl

from scoremode.schemes.gguf import BLOCK_TYPES
from scoremode.schemes.gguf_i_quants import grid
from scoremode.schemes.gguf_types import VALUES


@triton.jit
def plain_codes(at, k, there, kind: tl.constexpr, width: tl.constexpr):
    """uint32 [units] twice: the codes of the `k`th eight values of the blocks `at`, a byte each."""
    if kind == "Q8_0":
        low, high = words(at + 2 + 8 * k, there, width)
        # From two's complement to plus 128.
        low, high = low ^ 0x80808080, high ^ 0x80808080
    elif kind == "Q4_0" or kind == "IQ4_NL" or kind == "Q4_1":
        begin: tl.constexpr = 4 if kind == "Q4_1" else 2
        low, high = _fields(at + begin + k % 2 * 8, k // 2 * 4, 15, there, width)
    elif kind == "Q5_0" or kind == "Q5_1":
        begin: tl.constexpr = 4 if kind == "Q5_1" else 2
        low, high = _fields(at + begin + 4 + k % 2 * 8, k // 2 * 4, 15, there, width)
        fifth = byte(at + begin + k, there)
        low |= spread_bits(fifth & 15) << 4
        high |= spread_bits(fifth >> 4) << 4
    elif kind == "MXFP4":
        low, high = _fields(at + 1 + k % 2 * 8, k // 2 * 4, 15, there, width)
    elif kind == "NVFP4":
        low, high = _fields(at + 4 + k // 2 * 8, k % 2 * 4, 15, there, width)
    elif kind == "IQ4_XS":
        place = 8 + k // 4 * 16 + k % 2 * 8
        low, high = _fields(at + place, k // 2 % 2 * 4, 15, there, width)
    elif kind == "Q2_K" or kind == "TQ2_0" or kind == "Q3_K":
        # Four codes to a byte, those of a half of the block in 32 bytes.
        begin: tl.constexpr = 16 if kind == "Q2_K" else 32 if kind == "Q3_K" else 0
        place = begin + k // 16 * 32 + k % 4 * 8
        low, high = _fields(at + place, k // 4 % 4 * 2, 3, there, width)
        if kind == "Q3_K":
            third, last = _fields(at + k % 4 * 8, k // 4, 1, there, width)
            low, high = low | (third << 2), high | (last << 2)
    elif kind == "Q4_K" or kind == "Q5_K":
        begin: tl.constexpr = 16 if kind == "Q4_K" else 48
        place = begin + k // 8 * 32 + k % 4 * 8
        low, high = _fields(at + place, k // 4 % 2 * 4, 15, there, width)
        if kind == "Q5_K":
            fifth, last = _fields(at + 16 + k % 4 * 8, k // 4, 1, there, width)
            low, high = low | (fifth << 4), high | (last << 4)
    elif kind == "Q6_K":
        place = k // 16 * 64 + k // 4 % 2 * 32 + k % 4 * 8
        low, high = _fields(at + place, k // 8 % 2 * 4, 15, there, width)
        place = 128 + k // 16 * 32 + k % 4 * 8
        upper, last = _fields(at + place, k // 4 % 4 * 2, 3, there, width)
        low, high = low | (upper << 4), high | (last << 4)
    else:
        tl.static_assert(kind == "TQ1_0")
        # Five to a byte of 32 bytes and of 16, and four to one of 4, so that eight are of two powers.
        place = tl.where(k < 20, k % 4 * 8, tl.where(k < 30, 32 + k % 2 * 8, 48))
        nth = tl.where(k < 20, k // 4, tl.where(k < 30, (k - 20) // 2, (k - 30) * 2))
        low = word(at + place, there, width)
        high = word(at + tl.where(k < 30, place + 4, place), there, width)
        low = _trits(low, _power_of_three(nth))
        high = _trits(high, _power_of_three(nth + (k >= 30).to(tl.int32)))
    return low, high


@triton.jit
def plain_scales(at, k, there, kind: tl.constexpr, width: tl.constexpr):
    """float32 [units] twice: the scale of the same values, and what is added to the product, zero where
    nothing is.

    What is subtracted comes times -1: Triton 3.6's minus is zero less it, which makes no zero negative.
    """
    minimum = tl.zeros(k.shape, tl.float32)
    if kind == "Q4_1" or kind == "Q5_1":
        scale, minimum = half(at, there, width), half(at + 2, there, width)
    elif kind == "Q2_K":
        code = byte(at + k // 2, there)
        scale = half(at + 80, there, width) * (code & 15).to(tl.float32)
        minimum = half(at + 82, there, width) * (code >> 4).to(tl.float32) * -1.0
    elif kind == "Q3_K":
        group = k // 2
        low = byte(at + 96 + group % 8, there) >> (group // 8 * 4) & 15
        high = byte(at + 104 + group % 4, there) >> (group // 4 * 2) & 3
        code = (low | (high << 4)).to(tl.int32) - 32
        scale = half(at + 108, there, width) * code.to(tl.float32)
    elif kind == "Q4_K" or kind == "Q5_K":
        # Groups 0 to 3 have 6 bits; groups 4 to 7 have nibbles, and the bits left over there.
        group = k // 4
        first = byte(at + 4 + group % 4, there)
        second = byte(at + 8 + group % 4, there)
        nibbles = byte(at + 12 + group % 4, there)
        code = tl.where(group < 4, first & 63, (nibbles & 15) | (first >> 2 & 48))
        less = tl.where(group < 4, second & 63, (nibbles >> 4) | (second >> 2 & 48))
        scale = half(at, there, width) * code.to(tl.float32)
        minimum = half(at + 2, there, width) * less.to(tl.float32) * -1.0
    elif kind == "Q6_K":
        code = (byte(at + 192 + k // 2, there) ^ 128).to(tl.int32) - 128
        scale = half(at + 208, there, width) * code.to(tl.float32)
    elif kind == "IQ4_XS":
        group = k // 4
        low = byte(at + 4 + group // 2, there) >> (group % 2 * 4) & 15
        high = short(at + 2, there, width) >> (group * 2) & 3
        code = (low | (high << 4)).to(tl.int32) - 32
        scale = half(at, there, width) * code.to(tl.float32)
    elif kind == "MXFP4":
        # Half of a power of two, since the values are doubled: 2^-128 and 2^-127 are subnormal.
        code = byte(at, there)
        bits = tl.where(code < 2, 0x00200000 << code, (code - 1) << 23)
        scale = bits.to(tl.float32, bitcast=True)
    elif kind == "NVFP4":
        # Half of e4m3, whose sign doesn't count; 127 stands for none, and that with a sign for 480.
        code = byte(at + k // 2, there)
        scale = ((code & 127) << 20).to(tl.float32, bitcast=True) * 2.0**119
        scale = tl.where(code == 127, 0.0, scale)
    else:
        place: tl.constexpr = 52 if kind == "TQ1_0" else 64 if kind == "TQ2_0" else 0
        scale = half(at + place, there, width)
    return scale, minimum


@triton.jit
def _fields(at, shift, mask: tl.constexpr, there, width: tl.constexpr):
    """uint32 twice: the bits under `mask` of each of eight bytes, from their bit `shift` on."""
    low, high = words(at, there, width)
    each: tl.constexpr = mask * 0x01010101
    shift = shift.to(tl.uint32)
    return low >> shift & each, high >> shift & each


@triton.jit
def spread_bits(bits):
    """uint32: the lowest four bits, all there are, each as the lowest of a byte."""
    return bits * 0x00204081 & 0x01010101


@triton.jit
def _power_of_three(nth):
    """uint32: 1, 3, 9, 27 and 81."""
    power = tl.where(nth == 0, 1, tl.where(nth == 1, 3, tl.where(nth == 2, 9, 27)))
    return tl.where(nth == 4, 81, power).to(tl.uint32)


@triton.jit
def _trits(bytes, power):
    """uint32: of four bytes, each times `power` in 8 bits, its highest digit to base three."""
    even = ((bytes & 0x00FF00FF) * power & 0x00FF00FF) * 3 >> 8 & 0x00030003
    odd = ((bytes >> 8 & 0x00FF00FF) * power & 0x00FF00FF) * 3 >> 8 & 0x00030003
    return even | (odd << 8)


@triton.jit
def words(at, there, width: tl.constexpr):
    """uint32 twice: eight bytes from `at` on, which are multiples of `width`."""
    if width == 8:
        both = tl.load(at.to(tl.pointer_type(tl.uint64)), mask=there)
        low, high = both.to(tl.uint32), (both >> 32).to(tl.uint32)
    elif width >= 2:
        low, high = word(at, there, width), word(at + 4, there, width)
    else:
        # Of three words, or two where they begin with one. What these hold beside the eight bytes
        # shares an aligned word with some of them, and so is there to be read.
        skip = (at.to(tl.int64) & 3).to(tl.int32)
        line = (at - skip).to(tl.pointer_type(tl.uint32))
        first, second = tl.load(line, mask=there), tl.load(line + 1, mask=there)
        third = tl.load(line + tl.where(skip > 0, 2, 1), mask=there)
        skip = skip.to(tl.uint32) * 8
        # A shift by 32 is undefined: by 1 and the rest.
        low = (first >> skip) | ((second << 1) << (31 - skip))
        high = (second >> skip) | ((third << 1) << (31 - skip))
    return low, high


@triton.jit
def word(at, there, width: tl.constexpr):
    """uint32: four bytes."""
    if width >= 4:
        value = tl.load(at.to(tl.pointer_type(tl.uint32)), mask=there)
    else:
        value = short(at, there, width) | (short(at + 2, there, width) << 16)
    return value


@triton.jit
def short(at, there, width: tl.constexpr):
    """uint32: two bytes."""
    if width >= 2:
        value = tl.load(at.to(tl.pointer_type(tl.uint16)), mask=there).to(tl.uint32)
    else:
        value = byte(at, there) | (byte(at + 1, there) << 8)
    return value


@triton.jit
def byte(at, there):
    """uint32: one byte."""
    return tl.load(at, mask=there).to(tl.uint32)


@triton.jit
def half(at, there, width: tl.constexpr):
    """float32: a half in two bytes."""
    return short(at, there, width).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


# By type, whose codebook it has.
CODEBOOKS = {
    "IQ1_S": "IQ1_S",
    "IQ1_M": "IQ1_S",
    "IQ2_XXS": "IQ2_XXS",
    "IQ2_XS": "IQ2_XS",
    "IQ2_S": "IQ2_S",
    "IQ3_XXS": "IQ3_XXS",
    "IQ3_S": "IQ3_S",
}


@triton.jit
def grid_codes(at, k, table, there, kind: tl.constexpr, width: tl.constexpr):
    """uint32 [units] twice: the `k`th eight codes of the blocks `at` plus 128, a byte each.

    - `table`: the codebook, whose points are int64 of eight bytes, or int32 of four (IQ3).
    """
    group = k // 4
    if kind == "IQ1_S" or kind == "IQ1_M":
        if kind == "IQ1_S":
            code = short(at + 34 + 2 * group, there, width)
            place = byte(at + 2 + k, there) | ((code >> (k % 4 * 3) & 7) << 8)
            # The points less an eighth come after the others.
            place |= code >> 15 << 11
        else:
            code = byte(at + 32 + k // 2, there) >> (k % 2 * 4)
            place = byte(at + k, there) | ((code & 15) << 8)
        low, high = _point(table, place, there)
        low, high = low ^ 0x80808080, high ^ 0x80808080
    else:
        if kind == "IQ2_XXS":
            place = byte(at + 2 + 8 * group + k % 4, there)
            signs = _seven(word(at + 6 + 8 * group, there, width) >> (k % 4 * 7))
        elif kind == "IQ2_XS":
            code = short(at + 2 + 2 * k, there, width)
            place, signs = code & 511, _seven(code >> 9)
        elif kind == "IQ2_S":
            most = byte(at + 66 + group, there) >> (k % 4 * 2) & 3
            place = byte(at + 2 + k, there) | (most << 8)
            signs = byte(at + 34 + k, there)
        elif kind == "IQ3_XXS":
            place, last = byte(at + 2 + 2 * k, there), byte(at + 3 + 2 * k, there)
            signs = _seven(word(at + 66 + 4 * group, there, width) >> (k % 4 * 7))
        else:
            tl.static_assert(kind == "IQ3_S")
            most = byte(at + 66 + group, there) >> (k % 4 * 2)
            place = byte(at + 2 + 2 * k, there) | ((most & 1) << 8)
            last = byte(at + 3 + 2 * k, there) | ((most >> 1 & 1) << 8)
            signs = byte(at + 74 + k, there)
        if kind == "IQ3_XXS" or kind == "IQ3_S":
            low = tl.load(table + place, mask=there).to(tl.uint32, bitcast=True)
            high = tl.load(table + last, mask=there).to(tl.uint32, bitcast=True)
        else:
            low, high = _point(table, place, there)
        low, high = _signed(low, signs & 15), _signed(high, signs >> 4)
    return low, high


@triton.jit
def grid_scales(at, k, there, kind: tl.constexpr, width: tl.constexpr):
    """float32 [units]: the scale of the same values; of IQ1's, of a value's eighth."""
    group = k // 4
    if kind == "IQ1_S":
        code = short(at + 34 + 2 * group, there, width) >> 12 & 7
        scale = half(at, there, width) * (2 * code + 1).to(tl.float32) * 0.125
    elif kind == "IQ1_M":
        # The highest nibbles of four words of scales are those of a half.
        bits = short(at + 48, there, width) >> 12
        for nth in tl.static_range(1, 4):
            bits |= short(at + 48 + 2 * nth, there, width) >> 12 << (4 * nth)
        whole = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        code = short(at + 48 + k // 8 * 2, there, width) >> (k // 2 % 4 * 3) & 7
        scale = whole * (2 * code + 1).to(tl.float32) * 0.125
    elif kind == "IQ3_S":
        code = byte(at + 106 + group // 2, there) >> (group % 2 * 4) & 15
        scale = half(at, there, width) * (2 * code + 1).to(tl.float32)
    else:
        if kind == "IQ2_XXS":
            code = word(at + 6 + 8 * group, there, width) >> 28
        elif kind == "IQ3_XXS":
            code = word(at + 66 + 4 * group, there, width) >> 28
        else:
            place: tl.constexpr = 66 if kind == "IQ2_XS" else 74
            code = byte(at + place + group, there) >> (k // 2 % 2 * 4) & 15
        part: tl.constexpr = 0.5 if kind == "IQ3_XXS" else 0.25
        scale = half(at, there, width) * (code.to(tl.float32) + 0.5) * part
    return scale


@triton.jit
def _point(table, place, there):
    """uint32 twice: the eight bytes of a point."""
    both = tl.load(table + place, mask=there).to(tl.uint64, bitcast=True)
    return both.to(tl.uint32), (both >> 32).to(tl.uint32)


@triton.jit
def _seven(bits):
    """uint32: eight signs of the lowest seven, of which an even number is set."""
    signs = bits & 127
    odd = signs ^ (signs >> 4)
    # Bit n of 0x6996 is whether n has an odd number of bits.
    odd = (tl.full(odd.shape, 0x6996, tl.uint32) >> (odd & 15)) & 1
    return signs | (odd << 7)


@triton.jit
def _signed(bytes, signs):
    """uint32: four bytes, 1 to 127, with a sign each, plus 128."""
    less = spread_bits(signs)
    # All bits of a byte turned, and one, is 256 less it; then the highest bit is 128 more or less.
    return ((bytes ^ (less * 255)) + less) ^ 0x80808080


# Units of eight values of a program: whole blocks of 256.
_TILE = 512
# The offset that codes are read with.
_BIAS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q3_K": 4, "Q6_K": 32, "TQ1_0": 1, "TQ2_0": 1}


def decode(out: torch.Tensor, packed: torch.Tensor, kind: str) -> None:
    """Fills `out` [O, I] with code · scale + minimum, rounded once from float32.

    - `packed` uint8 [O, bytes of a row] in blocks of the type `kind`; both contiguous.
    """
    _launch(packed, kind, out)


def factor(out: torch.Tensor, scale: torch.Tensor, packed: torch.Tensor, kind: str) -> None:
    """Fills `out` [O, I], of any dtype that holds them, with codes, `scale` float32 [O, I / group]; all
    of them contiguous."""
    _launch(packed, kind, out, scale)


def scales(
    scale: torch.Tensor, minimum: torch.Tensor | None, packed: torch.Tensor, kind: str
) -> None:
    """Fills `scale` and `minimum` float32 [O, I / group], contiguous; None for types without
    minimums."""
    _launch(packed, kind, None, scale, minimum)


def _launch(
    packed: torch.Tensor,
    kind: str,
    out: torch.Tensor | None,
    scale: torch.Tensor | None = None,
    minimum: torch.Tensor | None = None,
) -> None:
    of = BLOCK_TYPES[kind]
    assert packed.is_contiguous() and packed.numel() % of.bytes == 0
    units = packed.numel() // of.bytes * (of.values // 8)
    assert out is None or (out.is_contiguous() and out.numel() == 8 * units)
    # The alignment of the first address and of the size of a block.
    width = next(w for w in (8, 4, 2, 1) if packed.data_ptr() % w == of.bytes % w == 0)
    with torch.cuda.device_of(packed):
        _decode[(triton.cdiv(units, _TILE),)](
            out, scale, minimum, packed, _table(kind, packed.device), units,
            kind=kind, size=of.bytes, held=of.values // 8, group=of.group // 8,
            has_minimum=of.has_minimum, bias=_BIAS.get(kind, 128 if kind in CODEBOOKS else 0),
            by_value=kind in VALUES, by_point=kind in CODEBOOKS, width=width,
            whole=units % _TILE == 0, tile=_TILE,
        )  # fmt: skip


def _table(kind: str, device: torch.device) -> torch.Tensor | None:
    """The table that codes are places in, a codebook or float32 [16]; None where they are values."""
    if kind in VALUES:
        return _values(VALUES[kind], device)
    return grid(CODEBOOKS[kind], device) if kind in CODEBOOKS else None


@lru_cache(maxsize=8)
def _values(values: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


# A first address' multiples are in `width`.
@triton.jit(do_not_specialize=["units"], do_not_specialize_on_alignment=["packed", "table"])
def _decode(
    out, scale_out, minimum_out, packed, table, units,
    kind: tl.constexpr, size: tl.constexpr, held: tl.constexpr, group: tl.constexpr,
    has_minimum: tl.constexpr, bias: tl.constexpr, by_value: tl.constexpr,
    by_point: tl.constexpr, width: tl.constexpr, whole: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Blocks of `size` bytes and `held` units, `group` units to a scale. Dense values, or codes alone
    where there is room for scales; `whole`: a program has all of its units."""
    # A program begins with a block.
    begin = tl.program_id(0).to(tl.int64) * tile
    unit = tl.arange(0, tile)
    there = None if whole else unit < tl.minimum(units - begin, tile).to(tl.int32)
    at = packed + begin // held * size + unit // held * size
    k = unit % held
    if by_point:
        scale = grid_scales(at, k, there, kind, width)
    else:
        scale, minimum = plain_scales(at, k, there, kind, width)
    if scale_out is not None:
        first = unit % group == 0
        if not whole:
            first &= there
        place = begin // group + unit // group
        tl.store(scale_out + place, scale, mask=first)
        if minimum_out is not None:
            tl.store(minimum_out + place, minimum, mask=first)
    if out is not None:
        if by_point:
            low, high = grid_codes(at, k, table, there, kind, width)
        else:
            low, high = plain_codes(at, k, there, kind, width)
        nth = tl.arange(0, 8)[None, :]
        code = tl.where(nth < 4, low[:, None], high[:, None])
        if by_value:
            value = tl.load(table + (code >> (nth % 4 * 8) & 15))
            part = tl.full(nth.shape, 1.0, tl.float32)
        else:
            # An integer in the lowest bits of 2^23's mantissa is 2^23 plus it. Every second byte stays
            # where it is, which makes it 256 times as large, and its scale as much smaller.
            even = nth % 2 == 0
            code = code >> (nth % 4 // 2 * 16) & tl.where(even, 0xFF, 0xFF00)
            less = tl.where(even, 8388608.0 + bias, 8388608.0 + 256 * bias)
            value = (code | 0x4B000000).to(tl.float32, bitcast=True) - less
            part = tl.where(even, 1.0, 1.0 / 256)
        if scale_out is not None:
            value = value * part
        else:
            # Exact, so that one instruction may round it together with the sum.
            value = value * (scale[:, None] * part)
            if has_minimum:
                value += minimum[:, None]
        target = out + begin * 8 + unit[:, None] * 8 + nth
        tl.store(target, value.to(out.dtype.element_ty), mask=None if whole else there[:, None])
