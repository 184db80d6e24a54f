"""Keys and values as a cache in a format gives them back, in one launch: the numbers of `formats.py`.

A program holds some tokens' heads whole: their rotation, scales and codes never leave it, so that what
is read and written is what attention needs anyway. A line is what shares a scale, a head or a block of
it; a head whose size is no power of two has zeros behind it, which are in no line of its own blocks and
change no largest magnitude.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from scoremode.engines.kv_formats import KvFormat

# Values of one program.
_VALUES = 4096
# Kinds of codes; what each is for is said where it is computed.
_KINDS = {"q8_0": 6, "q4_0": 7, "q5_0": 7, "q4_1": 8, "q5_1": 8, "nvfp4": 4, "int": 5}
_STEPS = {"q4_0": 8, "q5_0": 16}
_TOPS = {"q4_0": 15, "q5_0": 31, "q4_1": 15, "q5_1": 31}
_LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}


def round_heads(
    x: torch.Tensor, form: KvFormat, scale: torch.Tensor, heads: int, inner: int, out: torch.Tensor
) -> None:
    """Fills `out` with what `x` [..., D] is in the cache; both contiguous and of one shape.

    - `scale` float32 [1] or [heads], of static ones; a row of D values is of the head (number of the
      row / `inner`) modulo `heads`.
    """
    size = x.shape[-1]
    rows = x.numel() // size
    if not rows:
        return
    assert x.is_contiguous() and out.is_contiguous() and out.shape == x.shape
    padded = triton.next_power_of_2(size)
    many = form.rotated(size) or 1
    block = max(1, _VALUES // padded)
    kind = _KINDS.get(form.name)
    if kind is None:
        kind = {"int8": 2}.get(form.name, 3) if form.scale == "token" else 0
        if form.name == "int8" and form.scale != "token":
            kind = 1
    _round_heads[(triton.cdiv(rows, block),)](
        x, out, scale, rows, heads if scale.numel() > 1 else 1, inner, size,
        kind=kind, is_e5m2=form.name == "fp8_e5m2", width=form.block or padded,
        steps=float(_STEPS.get(form.name, 0)),
        top=float((1 << form.bits) - 1 if form.bits else _TOPS.get(form.name, 0)),
        largest=_LARGEST.get(form.name, 1.0), many=many, shrink=many**-0.5,
        stages=many.bit_length() - 1, block=block, padded=padded,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _round_heads(
    x, out, scales, rows, heads, inner, size,
    kind: tl.constexpr, is_e5m2: tl.constexpr, width: tl.constexpr, steps: tl.constexpr,
    top: tl.constexpr, largest: tl.constexpr, many: tl.constexpr, shrink: tl.constexpr,
    stages: tl.constexpr, block: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    column = tl.arange(0, padded)[None, :]
    there = (row < rows)[:, None] & (column < size)
    place = row[:, None] * size + column
    values = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    if stages > 0:
        values = _turned(values, block, padded, many, stages, shrink)
    lines: tl.constexpr = block * padded // width
    scale = tl.load(scales + (row // inner) % heads)[:, None]
    if kind == 0:
        # Small floats by a static scale.
        wide = scale + tl.zeros_like(values)
        values = _float8(tl.div_rn(values, wide), is_e5m2) * scale
    elif kind == 1:
        # int8 by a static scale.
        q = _clamped(tl.div_rn(values, scale + tl.zeros_like(values)), -128.0, 127.0)
        values = _even(q) * scale
    else:
        grouped = values.reshape(lines, width)
        if kind == 4:
            # `scale` is the one that multiplies all: the same in every row.
            grouped = _nvfp4(grouped, tl.load(scales))
        elif kind == 2 or kind == 3:
            grouped = _by_token(grouped, largest, kind == 2, is_e5m2)
        elif kind == 5:
            grouped = _grouped(grouped, top)
        elif kind == 6:
            grouped = _q8_0(grouped)
        elif kind == 7:
            grouped = _around_zero(grouped, steps, top, width)
        else:
            grouped = _with_minimum(grouped, top)
        values = grouped.reshape(block, padded)
    if stages > 0:
        values = _turned(values, block, padded, many, stages, shrink)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=there)


@triton.jit
def _turned(
    x, block: tl.constexpr, padded: tl.constexpr, many: tl.constexpr, stages: tl.constexpr,
    shrink: tl.constexpr,
):  # fmt: skip
    """Each run of `many` values by Hadamard's matrix. Halves are added and subtracted and put beside
    each other, which brings quarters where halves were: after the last stage all is in its place."""
    runs: tl.constexpr = block * padded // many
    x = x.reshape(runs, many)
    for _ in tl.static_range(stages):
        one, other = tl.split(x.reshape(runs, 2, many // 2).permute(0, 2, 1))
        x = tl.join(one + other, one - other).reshape(runs, many)
    return x.reshape(block, padded) * shrink


@triton.jit
def _by_token(x, largest: tl.constexpr, is_int: tl.constexpr, is_e5m2: tl.constexpr):
    scale = tl.max(tl.abs(x), 1)
    scale = tl.div_rn(scale, tl.full(scale.shape, largest, tl.float32))
    scale = tl.where(scale < 1e-6, 1e-6, scale)
    q = x * tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)[:, None]
    if is_int:
        q = _truncated(_clamped(q + tl.where(q >= 0, 0.5, -0.5), -128.0, 127.0))
    else:
        q = _float8(q, is_e5m2)
    return q * scale[:, None]


@triton.jit
def _nvfp4(x, whole):
    size = tl.max(tl.abs(x), 1)
    scale = tl.div_rn(size, tl.zeros_like(size) + whole * 6.0)
    scale = (_small(scale, 3, 121, 448.0) * whole)[:, None]
    q = _small(tl.div_rn(x, scale + tl.zeros_like(x)), 1, 127, 6.0)
    return tl.where(scale == 0, 0.0, q * scale)


@triton.jit
def _grouped(x, top: tl.constexpr):
    least, most = tl.min(x, 1), tl.max(x, 1)
    step = _halved(tl.div_rn(most - least, tl.full(least.shape, top, tl.float32)))[:, None]
    least = _halved(least)[:, None]
    q = _even(_clamped(tl.div_rn(x - least, step + tl.zeros_like(x)), 0.0, top))
    return tl.where(step == 0, 0.0, q) * step + least


@triton.jit
def _q8_0(x):
    scale = tl.max(tl.abs(x), 1)
    scale = tl.div_rn(scale, tl.full(scale.shape, 127.0, tl.float32))
    q = x * _inverse(scale)[:, None]
    whole = _truncated(q)
    rest = q - whole
    whole = whole + tl.where(rest >= 0.5, 1.0, 0.0) - tl.where(rest <= -0.5, 1.0, 0.0)
    return whole * _halved(scale)[:, None]


@triton.jit
def _around_zero(x, steps: tl.constexpr, top: tl.constexpr, width: tl.constexpr):
    column = tl.arange(0, width)[None, :]
    size = tl.abs(x)
    first = tl.min(tl.where(size == tl.max(size, 1)[:, None], column, width - 1), 1)
    value = tl.sum(tl.where(column == first[:, None], x, 0.0), 1)
    scale = tl.div_rn(value, tl.full(value.shape, -steps, tl.float32))
    q = _truncated(x * _inverse(scale)[:, None] + (steps + 0.5))
    return (tl.where(q > top, top, q) - steps) * _halved(scale)[:, None]


@triton.jit
def _with_minimum(x, top: tl.constexpr):
    least, most = tl.min(x, 1), tl.max(x, 1)
    step = tl.div_rn(most - least, tl.full(least.shape, top, tl.float32))
    q = _truncated((x - least[:, None]) * _inverse(step)[:, None] + 0.5)
    return tl.where(q > top, top, q) * _halved(step)[:, None] + _halved(least)[:, None]


@triton.jit
def _float8(x, is_e5m2: tl.constexpr):
    if is_e5m2:  # noqa: SIM108
        x = _small(x, 2, 113, 57344.0)
    else:
        x = _small(x, 3, 121, 448.0)
    return x


@triton.jit
def _small(x, mantissa: tl.constexpr, lowest: tl.constexpr, limit: tl.constexpr):
    """Clamped, and rounded half to even to a float of so many bits of mantissa, whose exponents begin
    at `lowest` in float32's counting."""
    raw = x.to(tl.int32, bitcast=True)
    size = (raw & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    size = tl.where(size > limit, limit, size)
    exponent = size.to(tl.int32, bitcast=True) & 0x7F800000
    # 2^23 steps: the sum's last bit is one step.
    shift = tl.maximum(exponent, lowest << 23) + ((23 - mantissa) << 23)
    shift = shift.to(tl.float32, bitcast=True)
    size = (size + shift) - shift
    return (size.to(tl.int32, bitcast=True) | (raw & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _even(x):
    """Half to even, of magnitudes below 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _truncated(x):
    """Towards zero, of magnitudes below 2^31; NaN stays."""
    return tl.where(x == x, x.to(tl.int32).to(tl.float32), x)


@triton.jit
def _halved(x):
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def _inverse(scale):
    return tl.where(
        _halved(scale) == 0, 0.0, tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    )


@triton.jit
def _clamped(x, low: tl.constexpr, high: tl.constexpr):
    """NaN stays."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)
