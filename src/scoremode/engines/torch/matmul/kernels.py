"""Products of codes on CUDA, and the steps after a product, each in one launch.

`multiply_parts`: codes times codes, part by part of the columns, with the scales of each part. A part
is as many columns as share a scale on both sides, 128 at most. Its sum is made by the tensor cores, of
int8 exactly in int32, of the others in float32; then it is multiplied by its two scales and added to
what came before, in order, each step rounded in float32 as `sums.by_parts` rounds it, and nothing is
written but the result. Tiles have one size, no sum is split among programs, and every run gives the
same bits. For integers they are those of the twin; of floats a part's own sum is rounded in the order
of the hardware.

`finish_sums`: scales, bias and one rounding to the dtype. The steps and their order are those of
`sums.finished`, its plain-torch twin, and none is fused with another, so the bits are the same.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false

import torch
import triton
import triton.language as tl

from scoremode.engines.torch.matmul.sums import Operands

# Rows that share the columns' scales in registers, and columns.
_ROWS = 8
_COLUMNS = 512
# Rows and outputs of a tile.
_TILE = 128
# Rows of tiles that run side by side, so that they find the same codes in the cache.
_NEIGHBOURS = 8
# Entries of a matrix that offsets of 32 bits reach.
_REACH = (1 << 31) - 1


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


def multiply_parts(
    operands: Operands, out: torch.Tensor, groups: tuple[int | None, int | None], part: int
) -> None:
    """Fills `out` float [N, O], contiguous, with the product of its operands, rounded to its dtype.

    - `groups`: columns of one scale of `x` and of `weight`, None for all; multiples of `part`. With one
      scale a row on both sides codes are integers, and the scales are applied to the total in int32 of
      sums in float32, both exact.
    """
    x, weight, bias = operands.x, operands.weight, operands.bias
    columns, outputs = x.codes.shape[1], len(weight.codes)
    assert (
        x.codes.dtype == weight.codes.dtype and out.is_contiguous() and outputs * columns <= _REACH
    )
    most = _REACH // columns
    for begin in range(0, len(x.codes), most):
        block = slice(begin, begin + most)
        codes, result = x.codes[block].contiguous(), out[block]
        scale = x.scale if len(x.scale) == 1 else x.scale[block]
        grid = (triton.cdiv(len(codes), _TILE) * triton.cdiv(outputs, _TILE),)
        _multiply_parts[grid](
            codes, weight.codes.contiguous(), scale, weight.scale,
            result if bias is None else bias, result, len(codes), outputs, columns,
            *_strides(scale), *_strides(weight.scale), 0 if bias is None else bias.stride(0),
            x_parts=_parts_of_one(groups[0], part), weight_parts=_parts_of_one(groups[1], part),
            way="integers" if groups == (None, None) else "parts", has_bias=bias is not None,
            is_ragged=columns % part != 0, is_int8=codes.dtype == torch.int8,
            block_rows=_TILE, block_outputs=_TILE, block_columns=part, neighbours=_NEIGHBOURS,
            num_warps=8, num_stages=3, enable_fp_fusion=False,
        )  # fmt: skip


def _strides(scale: torch.Tensor) -> tuple[int, int]:
    """Strides from row to row and group to group, zero along what all share."""
    rows, groups = scale.shape
    return 0 if rows == 1 else scale.stride(0), 0 if groups == 1 else scale.stride(1)


def _parts_of_one(group: int | None, part: int) -> int:
    """Parts under one scale; 0 if all are."""
    if group is None:
        return 0
    assert group % part == 0
    return group // part


@triton.jit
def _multiply_parts(
    x, weight, x_scale, weight_scale, bias, out, rows, outputs, columns,
    x_row, x_group, weight_row, weight_group, bias_stride,
    x_parts: tl.constexpr, weight_parts: tl.constexpr, way: tl.constexpr, has_bias: tl.constexpr,
    is_ragged: tl.constexpr, is_int8: tl.constexpr, block_rows: tl.constexpr,
    block_outputs: tl.constexpr, block_columns: tl.constexpr, neighbours: tl.constexpr,
):  # fmt: skip
    # Tiles go down `neighbours` rows of tiles, then right.
    down, across = tl.cdiv(rows, block_rows), tl.cdiv(outputs, block_outputs)
    band = tl.program_id(0) // (neighbours * across)
    height = tl.minimum(down - band * neighbours, neighbours)
    inside = tl.program_id(0) % (neighbours * across)
    row = (band * neighbours + inside % height) * block_rows + tl.arange(0, block_rows)
    output = inside // height * block_outputs + tl.arange(0, block_outputs)
    # Rows past the end read the last one's codes, and are not stored.
    from_row = tl.minimum(row, rows - 1)
    from_output = tl.minimum(output, outputs - 1)
    column = tl.arange(0, block_columns)
    # In 32 bits, which the launch has seen to be enough: 64 take the registers of the sums.
    x_place = from_row[:, None] * columns + column[None, :]
    weight_place = from_output[None, :] * columns + column[:, None]
    x_scale += from_row.to(tl.int64) * x_row
    weight_scale += from_output.to(tl.int64) * weight_row

    sum_type: tl.constexpr = tl.int32 if is_int8 else tl.float32
    total = tl.zeros((block_rows, block_outputs), tl.float32 if way == "parts" else tl.int32)
    for part in range(0, tl.cdiv(columns, block_columns)):
        by_row = tl.zeros((block_rows,), tl.float32)
        by_output = tl.zeros((block_outputs,), tl.float32)
        if way == "parts":
            # Asked for ahead of the product, which hides the way to memory.
            group = part // x_parts if x_parts else 0
            by_row = tl.load(x_scale + group * x_group)
            group = part // weight_parts if weight_parts else 0
            by_output = tl.load(weight_scale + group * weight_group)
        if is_ragged:
            left = columns - part * block_columns
            a = tl.load(x + x_place, mask=column[None, :] < left, other=0.0)
            b = tl.load(weight + weight_place, mask=column[:, None] < left, other=0.0)
        else:
            a = tl.load(x + x_place)
            b = tl.load(weight + weight_place)
        sums = tl.dot(a, b, out_dtype=sum_type)
        if way == "parts":
            total += sums.to(tl.float32) * by_output[None, :] * by_row[:, None]
        else:
            total += sums.to(tl.int32)
        x += block_columns
        weight += block_columns

    y = total.to(tl.float32)
    if way != "parts":
        y = y * tl.load(weight_scale)[None, :] * tl.load(x_scale)[:, None]
    is_output = output < outputs
    if has_bias:
        y += tl.load(bias + from_output * bias_stride).to(tl.float32)[None, :]
    place = out + row.to(tl.int64)[:, None] * outputs + output[None, :]
    mask = (row < rows)[:, None] & is_output[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=mask)
