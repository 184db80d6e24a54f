"""The steps after a product on CUDA, in one pass: its scales, its bias, one rounding to the dtype.

The steps and their order are those of `sums.finished`, its plain-torch twin, and none is fused with
another, so the bits are the same.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl

__all__ = ["finish_sums"]

# Rows that share the columns' scales in registers, and columns.
_ROWS = 8
_COLUMNS = 512


def finish_sums(
    sums: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """`out` = `sums` · `weight_scale` · `x_scale` + `bias`, in that order, in float32.

    - `sums` float32 or int32 and `out` float [N, O], contiguous; they may be the same.
    - `x_scale` float32 [N or 1, 1], `weight_scale` float32 [O or 1, 1]; `bias` float [O].
    """
    rows, columns = sums.shape
    assert sums.is_contiguous() and out.is_contiguous()
    grid = (triton.cdiv(rows, _ROWS), triton.cdiv(columns, _COLUMNS))
    _finish_sums[grid](
        sums, x_scale, weight_scale, sums if bias is None else bias, out, rows, columns,
        0 if len(x_scale) == 1 else x_scale.stride(0),
        0 if len(weight_scale) == 1 else weight_scale.stride(0),
        0 if bias is None else bias.stride(0), has_bias=bias is not None,
        block_rows=_ROWS, block_columns=_COLUMNS, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _finish_sums(
    sums, x_scale, weight_scale, bias, out, rows, columns, x_stride, weight_stride, bias_stride,
    has_bias: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    is_row, is_column = row < rows, column < columns
    by_row = tl.load(x_scale + row.to(tl.int64) * x_stride, mask=is_row, other=0.0)
    by_column = tl.load(weight_scale + column * weight_stride, mask=is_column, other=0.0)
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    mask = is_row[:, None] & is_column[None, :]
    y = tl.load(sums + place, mask=mask, other=0).to(tl.float32)
    y = y * by_column[None, :] * by_row[:, None]
    if has_bias:
        y += tl.load(bias + column * bias_stride, mask=is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=mask)
