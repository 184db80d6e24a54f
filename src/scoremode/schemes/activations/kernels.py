"""The CUDA quantizer of a linear's input: values are read, their codes and their line's scale written.

A line is what shares a scale: a token's row, or a group of its columns. The steps are those of
`Inputs.quantize`, in float32 and in its order, and so are the bits of codes and scales; codes of a line
that holds NaN may differ, and are NaN or under a scale of NaN in both.

Three things make it as fast as the memory. Extremes come from the bits of the magnitudes, ordered as
integers, with NaN above all. Rounding to a small float is the device's own conversion, or adds and
takes away the number whose last bit is the step. And x/s is q = x·(1/s), twice corrected by its residue
x - q·s, which one fused operation gives: the correctly rounded quotient (Markstein 1990), so long as
nothing leaves float32's range; where it might, the division itself is done.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false

import torch
import triton
import triton.language as tl

from scoremode.schemes.decoding.codes import FLOAT_MAX
from scoremode.schemes.fields import TensorFormat

# Values of one program, and the most that it holds at once of one line: a longer one is read twice, the
# second time out of the cache, so that several programs fit a multiprocessor.
_BLOCK = 4096
_TILE = 4096

# Triton's interpreter converts to float8 by another rounding.
_INTERPRETED = bool(triton.knobs.runtime.interpret)

# float32's.
_EPS = tl.constexpr(1.1920928955078125e-07)

# The dtypes that a scale may be rounded to, besides float32.
_ROUNDED = {torch.bfloat16: 1, torch.float16: 2}

# The ways in which a line's values become codes.
_FLOAT, _INT, _MX, _LOCAL = range(4)


def quantize_lines(
    x: torch.Tensor,
    form: TensorFormat,
    known: torch.Tensor | None,
    zero_point: torch.Tensor | None,
    codes: torch.Tensor,
    scale: torch.Tensor | None,
    *,
    multiplies: bool = False,
) -> None:
    """Fills `codes` and `scale` with those of `x`.

    - `x` float [N, I] and `codes` [N, I], contiguous; int8 codes: of symmetric integers by token.
    - `known` float32 [1 or N, 1]: scales that are not made of a line; NVFP4's global one; None.
    - `zero_point` float32 like `known`, of asymmetric integers whose scale is known.
    - `scale` float32 [N, I / group], or None where it is known before or a part of the code.
    - `multiplies`: whether NVFP4's global scale does, instead of dividing.
    """
    columns = x.shape[1]
    width = form.group_size or columns
    lines = x.numel() // width
    if not lines:
        return
    assert x.is_contiguous() and codes.is_contiguous() and columns % width == 0
    kind = _INT if form.type == "int" else _FLOAT
    if form.strategy == "tensor_group":
        kind = _LOCAL
    elif form.is_mx:
        kind = _MX
    assert codes.dtype != torch.int8 or (form.symmetric and width == columns)
    tile = min(triton.next_power_of_2(width), _TILE)
    block = max(1, _BLOCK // tile)
    # The kernel doesn't read an argument that is not given.
    nothing = x
    _quantize_lines[(triton.cdiv(lines, block),)](
        x, codes, nothing if scale is None else scale, nothing if known is None else known,
        nothing if zero_point is None else zero_point, lines, width,
        0 if known is None or len(known) == 1 else 1,
        kind=kind, bits=form.bits, asymmetric=not form.symmetric,
        is_known=known is not None, raises=form.powers_of_two, writes_scale=scale is not None,
        inverts=form.inverse, rounds=_ROUNDED.get(x.dtype, 0) if form.rounded else 0,
        float_limit=FLOAT_MAX.get(form.bits, 0.0), is_int8=codes.dtype == torch.int8,
        converts=codes.dtype == torch.float8_e4m3fn and not _INTERPRETED,
        block=block, tile=tile, fits=tile >= width, multiplies=multiplies,
        num_warps=max(1, min(16, block * tile // 1024)), enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _quantize_lines(
    x, codes, scales, known, known_zero, lines, width, known_stride,
    kind: tl.constexpr, bits: tl.constexpr, asymmetric: tl.constexpr,
    is_known: tl.constexpr, raises: tl.constexpr, writes_scale: tl.constexpr,
    inverts: tl.constexpr, rounds: tl.constexpr,
    float_limit: tl.constexpr, is_int8: tl.constexpr, converts: tl.constexpr,
    block: tl.constexpr, tile: tl.constexpr, fits: tl.constexpr, multiplies: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0) * block + tl.arange(0, block)
    here = line < lines
    start = line.to(tl.int64)[:, None] * width
    column = tl.arange(0, tile)[None, :]
    makes_scale: tl.constexpr = kind == 2 or kind == 3 or not is_known

    values = tl.zeros((block, tile), tl.float32)
    if fits:
        values = tl.load(x + start + column, mask=here[:, None] & (column < width), other=0.0).to(
            tl.float32
        )

    # 1. The extremes of each line.
    peak = tl.zeros((block,), tl.int32)
    low = tl.zeros((block,), tl.float32)
    high = tl.zeros((block,), tl.float32)
    if makes_scale:
        if fits:
            peak, low, high = _extremes(values, peak, low, high, asymmetric)
        else:
            for begin in range(0, width, tile):
                mask = here[:, None] & (begin + column < width)
                part = tl.load(x + start + begin + column, mask=mask, other=0.0).to(tl.float32)
                peak, low, high = _extremes(part, peak, low, high, asymmetric)

    # 2. Its scale, and what else its codes are made with.
    largest = tl.where(peak > 0x7F800000, 0x7FC00000, peak).to(tl.float32, bitcast=True)
    scale = tl.full((block,), 1.0, tl.float32)
    zero = tl.zeros((block,), tl.float32)
    factor = tl.full((block,), 1.0, tl.float32)
    if kind == 2:
        scale, factor = _mx_scales(largest, bits)
    elif kind == 3:
        whole = tl.load(known)
        if multiplies:
            local = tl.div_rn(largest, tl.zeros((block,), tl.float32) + whole * float_limit)
        else:
            local = tl.div_rn(largest, tl.full((block,), float_limit, tl.float32)) * whole
        local = _round_float(local, 8, 448.0)
        factor = tl.where(local == 0, 0.125, local)
        if multiplies:
            scale = factor * whole
        else:
            scale = tl.div_rn(factor, tl.zeros((block,), tl.float32) + whole)
    elif is_known:
        scale = tl.load(known + line * known_stride, mask=here, other=1.0)
        if asymmetric:
            zero = tl.load(known_zero + line * known_stride, mask=here, other=0.0)
    elif kind == 0:
        scale = tl.div_rn(largest, tl.full((block,), float_limit, tl.float32))
        scale = _rounded(scale, rounds)
        scale = _nonzero(scale)
        if raises:
            scale = _raised(scale)
    elif asymmetric:
        # NaN in no extreme of its own, but in the peak.
        low = tl.where(largest == largest, low, float("nan"))
        high = tl.where(largest == largest, high, float("nan"))
        steps: tl.constexpr = (1 << bits) - 1
        bottom: tl.constexpr = -(1 << (bits - 1))
        raw = tl.div_rn(high - low, tl.full((block,), steps, tl.float32))
        zero = bottom - tl.div_rn(low, raw)
        zero = tl.where(zero == zero, zero, bottom)
        zero = _round_int(_clamped(zero, bottom, -bottom - 1))
        scale = _nonzero(raw)
    else:
        half: tl.constexpr = ((1 << bits) - 1) / 2
        scale = tl.div_rn(largest, tl.full((block,), half, tl.float32))
        scale = _rounded(scale, rounds)
        scale = _at_least_epsilon(scale) if inverts else _nonzero(scale)

    # 3. The codes. Where a quotient might leave float32's range on the way, it is divided.
    is_usual = (scale > 2.0**-80) & (scale < 2.0**80)
    divides = kind == 3 or tl.min(is_usual.to(tl.int32), 0) == 0
    inverse = tl.div_rn(tl.full((block,), 1.0, tl.float32), scale)
    # An infinite scale of a line's own makes NaN of an infinity.
    lost = (peak >= 0x7F800000).to(tl.int32)
    if fits:
        q = _coded(values, scale, inverse, zero, factor, divides, kind, bits, asymmetric,
                   is_known, inverts, float_limit, is_int8, converts)  # fmt: skip
        _store(codes + start + column, q, here[:, None] & (column < width), is_int8)
        if is_int8 and is_known:
            lost = tl.max(((q != q) & (column < width)).to(tl.int32), 1)
    else:
        for begin in range(0, width, tile):
            mask = here[:, None] & (begin + column < width)
            part = tl.load(x + start + begin + column, mask=mask, other=0.0).to(tl.float32)
            q = _coded(part, scale, inverse, zero, factor, divides, kind, bits, asymmetric,
                       is_known, inverts, float_limit, is_int8, converts)  # fmt: skip
            _store(codes + start + begin + column, q, mask, is_int8)
            if is_int8 and is_known:
                lost = tl.maximum(lost, tl.max(((q != q) & mask).to(tl.int32), 1))
    if writes_scale:
        if is_int8:
            # An int8 code can't be NaN, so the line's scale is.
            scale = tl.where(lost > 0, float("nan"), scale)
        tl.store(scales + line, scale, mask=here)


@triton.jit
def _extremes(x, peak, low, high, asymmetric: tl.constexpr):
    """The largest magnitude's bits, which are NaN's where there is one; both ends, at least zero."""
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    peak = tl.maximum(peak, tl.max(size, 1))
    if asymmetric:
        low = tl.minimum(low, tl.min(tl.where(x < 0, x, 0.0), 1))
        high = tl.maximum(high, tl.max(tl.where(x > 0, x, 0.0), 1))
    return peak, low, high


@triton.jit
def _coded(
    x, scale, inverse, zero, factor, divides,
    kind: tl.constexpr, bits: tl.constexpr, asymmetric: tl.constexpr, is_known: tl.constexpr,
    inverts: tl.constexpr, float_limit: tl.constexpr, is_int8: tl.constexpr, converts: tl.constexpr,
):  # fmt: skip
    """float32 codes of `x` [lines, columns]."""
    scale, inverse = scale[:, None], inverse[:, None]
    if kind == 2:
        # A power of two: its inverse is exact.
        return _round_float(x * scale, bits, float_limit) * factor[:, None]
    if kind == 3:
        return (
            _round_float(tl.div_rn(x, scale + tl.zeros_like(x)), bits, float_limit)
            * factor[:, None]
        )
    if inverts:
        q = x * inverse
    elif divides:
        q = tl.div_rn(x, scale + tl.zeros_like(x))
    else:
        q = _quotient(x, scale, inverse, is_known)
    if kind == 0:
        if converts:
            # The conversion rounds half to even; no quotient by a line's own scale passes the limit.
            return _clamped(q, -float_limit, float_limit) if is_known else q
        return _round_float(q, bits, float_limit)
    bottom: tl.constexpr = -(1 << (bits - 1))
    if asymmetric:
        q = q + zero[:, None]
    q = _clamped(q, bottom, -bottom - 1)
    # An int8 has no sign of zero to keep.
    q = _round_plain(q) if is_int8 else _round_int(q)
    if asymmetric:
        q = q - zero[:, None]
    return q


@triton.jit
def _quotient(x, scale, inverse, may_overflow: tl.constexpr):
    """x / scale, correctly rounded, for a positive scale far from the ends of float32's range."""
    scale = scale + tl.zeros_like(x)
    inverse = inverse + tl.zeros_like(x)
    first = x * inverse
    q = tl.fma(tl.fma(-first, scale, x), inverse, first)
    q = tl.fma(tl.fma(-q, scale, x), inverse, q)
    if may_overflow:
        # So large that it is clamped anyway, or infinite, where the residue is no number.
        q = tl.where((first < 2.0**40) & (first > -(2.0**40)), q, first)
    # A zero keeps its sign.
    sign = x.to(tl.int32, bitcast=True) & -0x80000000
    return ((q.to(tl.int32, bitcast=True) & 0x7FFFFFFF) | sign).to(tl.float32, bitcast=True)


@triton.jit
def _round_float(x, bits: tl.constexpr, limit: tl.constexpr):
    """`round_float`: clamped, and rounded half to even to e2m1, e2m3 or e4m3."""
    mantissa: tl.constexpr = 1 if bits == 4 else 3
    lowest: tl.constexpr = 121 if bits == 8 else 127
    raw = x.to(tl.int32, bitcast=True)
    size = (raw & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    size = tl.where(size > limit, limit, size)
    exponent = size.to(tl.int32, bitcast=True) & 0x7F800000
    # 2^23 steps: the sum's last bit is one step.
    shift = tl.maximum(exponent, lowest << 23) + ((23 - mantissa) << 23)
    shift = shift.to(tl.float32, bitcast=True)
    size = (size + shift) - shift
    rounded = size.to(tl.int32, bitcast=True) | (raw & -0x80000000)
    return rounded.to(tl.float32, bitcast=True)


@triton.jit
def _round_plain(x):
    """Half to even, of magnitudes below 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _round_int(x):
    """Rounds half to even as `_round_plain` does, with the sign of zero."""
    raw = x.to(tl.int32, bitcast=True)
    size = (raw & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    size = _round_plain(size).to(tl.int32, bitcast=True)
    return (size | (raw & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _clamped(x, low: tl.constexpr, high: tl.constexpr):
    """NaN stays."""
    x = tl.where(x < low, low * 1.0, x)
    return tl.where(x > high, high * 1.0, x)


@triton.jit
def _nonzero(scale):
    """float32's epsilon stands for zero."""
    return tl.where(scale == 0, _EPS, scale)


@triton.jit
def _at_least_epsilon(scale):
    """NaN stays."""
    return tl.where(scale < _EPS, _EPS, scale)


@triton.jit
def _rounded(scale, dtype: tl.constexpr):
    """Rounds half to even to `dtype`, as bits: Triton's interpreter cuts off for bfloat16."""
    if dtype == 1:
        raw = scale.to(tl.int32, bitcast=True)
        raw = (raw + 0x7FFF + ((raw >> 16) & 1)) & -65536
        scale = raw.to(tl.float32, bitcast=True)
    if dtype == 2:
        scale = scale.to(tl.float16).to(tl.float32)
    return scale


@triton.jit
def _raised(scale):
    """The next power of two of at least 2^-126, `scale` itself where it is one; NaN stays."""
    above = (scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    return tl.where(scale == scale, above.to(tl.float32, bitcast=True), scale)


@triton.jit
def _mx_scales(largest, bits: tl.constexpr):
    """Returns the inverse of the power of two of `mx_exponents`, and that power itself."""
    mantissa: tl.constexpr = 3 if bits == 6 else 1
    offset: tl.constexpr = 8 if bits == 8 else 2
    raised = largest.to(tl.int32, bitcast=True) + (1 << (23 - mantissa - 1))
    exponent = tl.minimum(tl.maximum((raised >> 23) - offset, 0), 254)
    # 2^-127 is subnormal, on either side.
    power = tl.where(exponent == 0, 0x00400000, exponent << 23)
    inverse = tl.where(exponent == 254, 0x00400000, (254 - exponent) << 23)
    return inverse.to(tl.float32, bitcast=True), power.to(tl.float32, bitcast=True)


@triton.jit
def _store(place, q, mask, is_int8: tl.constexpr):
    if is_int8:
        # The last byte of q + 1.5·2^23 is q; of a NaN it is whatever it is.
        tl.store(place, (q + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8), mask=mask)
    else:
        tl.store(place, q.to(place.dtype.element_ty), mask=mask)
