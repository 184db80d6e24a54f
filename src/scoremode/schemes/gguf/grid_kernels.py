"""What the CUDA decoder reads of the blocks of ggml's types with codebooks: IQ1, IQ2 and IQ3.

A point is eight codes or four, a byte each; signs lie apart, and four of them are set at once.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from scoremode.schemes.gguf.plain_kernels import byte, half, short, spread_bits, word

__all__ = ["CODEBOOKS", "grid_codes", "grid_scales"]

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
