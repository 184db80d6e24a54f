"""The CUDA decoder of ggml's block types, bit for bit what plain torch gives.

A weight's rows are whole numbers of blocks, one behind the other, and so it is one run of blocks to
it. A thread makes eight values beside each other, which have one scale in all types: it reads their
codes into the bytes of two words, where all eight are moved and masked at once, and writes what they
mean at once. Neighbours read neighbouring bytes of a block, which may begin at any even address (of 18,
34, 110 or 210 bytes), or at an odd one (of 17)."""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportOptionalSubscript=false

from functools import lru_cache

import torch
import triton
import triton.language as tl

from scoremode.schemes.gguf import BLOCK_TYPES
from scoremode.schemes.gguf_block_kernels import (
    CODEBOOKS,
    grid_codes,
    grid_scales,
    plain_codes,
    plain_scales,
)
from scoremode.schemes.gguf_i_quants import grid
from scoremode.schemes.gguf_types import VALUES

# Units of eight values of a program: whole blocks of 256.
_TILE = 512
# What codes are read plus.
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
    # What the first address and the size of a block are multiples of.
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
