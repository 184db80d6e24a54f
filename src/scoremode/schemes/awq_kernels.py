"""The CUDA decoder of AWQ's layout `gemv_fast`, bit for bit what plain torch gives."""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl

# Elements of a program.
_TILE = 2048


def decode(
    out: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, size: int
) -> None:
    """Fills `out` [O, I], contiguous, with q · s + z, rounded to float16, then to its dtype.

    - `packed` int16 [O / 4, I]; `scale`, `zero` float16 [I / size, O]; I a multiple of 64.
    """
    rows, columns = out.shape
    assert out.is_contiguous() and rows % 4 == 0 and columns % 64 == 0 and columns % size == 0
    with torch.cuda.device_of(out):
        _decode[(triton.cdiv(out.numel(), _TILE),)](
            out, packed, scale, zero, rows, columns, size, tile=_TILE
        )


@triton.jit(do_not_specialize=["rows", "size"])
def _decode(out, packed, scale, zero, rows, columns, size, tile: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    there = at < rows.to(tl.int64) * columns
    row, column = at // columns, (at % columns).to(tl.int32)
    # 64 inputs are 16 words of each of four outputs; eight words are 32 inputs.
    word = (
        row // 4 * columns + column // 64 * 64 + row % 4 * 16 + column % 64 // 32 * 8 + column % 8
    )
    code = tl.load(packed + word, mask=there, other=0).to(tl.int32) >> (column % 32 // 8 * 4)
    place = (column // size).to(tl.int64) * rows + row
    factor = tl.load(scale + place, mask=there, other=0).to(tl.float32)
    offset = tl.load(zero + place, mask=there, other=0).to(tl.float32)
    # The product is exact: fused with the sum or not.
    value = ((code & 15).to(tl.float32) * factor + offset).to(tl.float16)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)
