"""The CUDA decoder of HQQ's weights, bit for bit what plain torch gives."""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from scoremode.schemes.decoding.kernels import ROUNDING

if TYPE_CHECKING:
    from scoremode.schemes.hqq import Grouped

# Elements of a program.
_TILE = 2048


def decode(
    out: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    scheme: "Grouped",
) -> None:
    """Fills `out` [O, I], contiguous, with (code − zero) · scale, either step rounded in the
    scheme's dtype.

    - `packed` [step, columns] of the packing's dtype; `scale`, `zero` of the scheme's, one a group.
    """
    assert out.is_contiguous()
    columns, packing = scheme.grid[1], scheme.packing
    with torch.cuda.device_of(out):
        _decode[(triton.cdiv(out.numel(), _TILE),)](
            out, packed, scale.contiguous(), zero.contiguous(), out.numel(), columns, scheme.step,
            bits=packing.bits, held=packing.count, by_row=scheme.axis == 1,
            rounding=ROUNDING[scheme.dtype], tile=_TILE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "step"])
def _decode(
    out, packed, scale, zero, count, columns, step,
    bits: tl.constexpr, held: tl.constexpr, by_row: tl.constexpr, rounding: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    there = at < count
    row = (at // columns).to(tl.int32)
    column = (at % columns).to(tl.int32)
    nth = row // step
    place = (row - nth * step).to(tl.int64) * columns + column
    word = tl.load(packed + place, mask=there, other=0).to(tl.uint32)
    code = (word >> ((held - 1 - nth) * bits).to(tl.uint32)) & ((1 << bits) - 1)
    group = row if by_row else column
    offset = tl.load(zero + group, mask=there, other=0).to(tl.float32)
    factor = tl.load(scale + group, mask=there, other=0).to(tl.float32)
    value = (code.to(tl.float32) - offset).to(rounding).to(tl.float32)
    value = (value * factor).to(rounding)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)
