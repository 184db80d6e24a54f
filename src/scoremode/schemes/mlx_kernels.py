"""The CUDA decoder of MLX's integers, bit for bit what plain torch gives.

Eight codes of a row lie in as many bytes as a code has bits, and so in two words of 32 for up to 4
bits, and in two words each half of them for more; from there all shifts are constants."""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl

# Rows and columns of a program.
_TILE = (4, 1024)


def decode(
    out: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    bits: int,
    size: int,
) -> None:
    """Fills `out` [O, I], contiguous, with code · scale + bias, each step rounded in their dtype.

    - `packed` int32 [O, I · bits / 32]; `scale`, `bias` [O, I / size], `size` a multiple of eight.
    """
    rows, columns = out.shape
    assert out.is_contiguous() and size % 8 == 0 and columns % size == 0
    column_blocks = triton.cdiv(columns, _TILE[1])
    with torch.cuda.device_of(out):
        _decode[(triton.cdiv(rows, _TILE[0]) * column_blocks,)](
            out, packed, scale, bias, rows, columns, packed.shape[1], column_blocks,
            bits=bits, size=size, tile_rows=_TILE[0], tile_columns=_TILE[1],
            # One rounding of product and sum would be another weight.
            enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "width", "column_blocks"])
def _decode(
    out, packed, scale, bias, rows, columns, width, column_blocks,
    bits: tl.constexpr, size: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = (block // column_blocks) * tile_rows + tl.arange(0, tile_rows)[:, None]
    units: tl.constexpr = tile_columns // 8
    first = (block % column_blocks * units + tl.arange(0, units)[None, :]) * 8
    nth = tl.arange(0, 8)[None, None, :]
    there = (row < rows) & (first < columns)
    line = packed + row.to(tl.int64) * width
    if bits <= 4:
        code = _window(line, first * bits, there, width)[:, :, None] >> (nth * bits)
    else:
        low = _window(line, first * bits, there, width)[:, :, None]
        high = _window(line, (first + 4) * bits, there, width)[:, :, None]
        code = tl.where(nth < 4, low, high) >> (nth % 4 * bits)
    code &= (1 << bits) - 1
    place = row.to(tl.int64) * (columns // size) + first // size
    rounding = scale.dtype.element_ty
    factor = tl.load(scale + place, mask=there, other=0).to(tl.float32)[:, :, None]
    offset = tl.load(bias + place, mask=there, other=0).to(tl.float32)[:, :, None]
    value = (code.to(tl.float32) * factor).to(rounding).to(tl.float32)
    value = (value + offset).to(rounding)
    target = out + row.to(tl.int64)[:, :, None] * columns + first[:, :, None] + nth
    tl.store(target, value.to(out.dtype.element_ty), mask=there[:, :, None])


@triton.jit
def _window(line, bit, there, width):
    """uint32: the bits from `bit` on. What lies beyond a row's end is not read."""
    word, skip = bit >> 5, bit & 31
    low = tl.load(line + word, mask=there, other=0).to(tl.uint32, bitcast=True) >> skip
    inside = there & (word + 1 < width)
    high = tl.load(line + word + 1, mask=inside, other=0).to(tl.uint32, bitcast=True)
    # A shift by 32 is undefined: by 1 and the rest.
    return low | ((high << 1) << (31 - skip))
