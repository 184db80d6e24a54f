"""CUDA decoders of single libraries' formats, bit for bit what plain torch gives beside their Schemes.

- AWQ's layout `gemv_fast`; HQQ.
- bitsandbytes: a weight is one run of elements to it, since a block of 4-bit codes may begin in one row
  and end in the next. A thread has eight elements beside each other, four bytes of 4-bit codes, which
  lie in one block, since blocks have 32 of them at least.
- EXL3: a program makes a block of 128 outputs × 128 inputs. It reads the codes where they lie, computes
  their values, and rotates them in its own memory, in the order of additions that plain torch has.
- MLX's integers: eight codes of a row lie in as many bytes as a code has bits, and so in two words of
  32 for up to 4 bits, and in two words each half of them for more; from there all shifts are constants.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from scoremode.schemes.decoding.kernels import ROUNDING
from scoremode.schemes.exl3 import ADDED, BLOCK, CODEBOOKS, MULTIPLIERS, TILE

if TYPE_CHECKING:
    from scoremode.schemes.hqq import Grouped

# Elements of a program; of MLX's its rows and columns.
GEMV_FAST_TILE = HQQ_TILE = 2048
BITSANDBYTES_TILE = 4096
MLX_TILE = (4, 1024)
# Of 4, 8, 16 and 32 on an H200 (torch 2.11, 4 bits, 14336 × 4096): 447, 394, 326 and 226 G weights/s.
_EXL3_WARPS = 4
_EXL3_BLOCK = tl.constexpr(BLOCK)
_EXL3_MUL1 = tl.constexpr(CODEBOOKS.index("mul1"))


def gemv_fast(
    out: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, size: int
) -> None:
    """Fills `out` [O, I], contiguous, with q · s + z, rounded to float16, then to its dtype.

    - `packed` int16 [O / 4, I]; `scale`, `zero` float16 [I / size, O]; I a multiple of 64.
    """
    rows, columns = out.shape
    assert out.is_contiguous() and rows % 4 == 0 and columns % 64 == 0 and columns % size == 0
    with torch.cuda.device_of(out):
        _gemv_fast[(triton.cdiv(out.numel(), GEMV_FAST_TILE),)](
            out, packed, scale, zero, rows, columns, size, tile=GEMV_FAST_TILE
        )


@triton.jit(do_not_specialize=["rows", "size"])
def _gemv_fast(out, packed, scale, zero, rows, columns, size, tile: tl.constexpr):
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


def four_bit(
    out: torch.Tensor,
    packed: torch.Tensor,
    absmax: torch.Tensor,
    table: torch.Tensor,
    blocksize: int,
    rounding: torch.dtype,
) -> None:
    """Fills `out` [O, I], contiguous, with table[code] · absmax, rounded to `rounding`, then to its
    dtype.

    - `packed` uint8 [bytes]; `absmax` float32 [blocks]; `table` float32 [16].
    """
    assert out.is_contiguous() and blocksize % 8 == 0
    count = out.numel()
    width = len(packed) // 4
    # A run that is no whole number of words, or begins within one, is read byte by byte.
    by_word = len(packed) % 4 == 0 and packed.data_ptr() % 4 == 0
    with torch.cuda.device_of(out):
        _four_bit[(triton.cdiv(count, BITSANDBYTES_TILE),)](
            out, packed.view(torch.int32) if by_word else packed, absmax, table, count,
            width if by_word else len(packed), blocksize=blocksize, by_word=by_word,
            rounding=ROUNDING[rounding], tile=BITSANDBYTES_TILE,
        )  # fmt: skip


def llm_int8(
    out: torch.Tensor, weight: torch.Tensor, largest: torch.Tensor, inverse: float
) -> None:
    """Fills `out` [O, I], contiguous, with `weight` int8 · `largest` float32 [O] · `inverse`."""
    rows, columns = out.shape
    assert out.is_contiguous() and weight.is_contiguous()
    blocks = triton.cdiv(columns, BITSANDBYTES_TILE)
    with torch.cuda.device_of(out):
        _int8[(rows * blocks,)](
            out, weight, largest, columns, blocks, inverse=inverse, tile=BITSANDBYTES_TILE
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "width"])
def _four_bit(
    out, packed, absmax, table, count, width,
    blocksize: tl.constexpr, by_word: tl.constexpr, rounding: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    unit = tl.program_id(0).to(tl.int64) * (tile // 8) + tl.arange(0, tile // 8)
    nth = tl.arange(0, 8)[None, :]
    if by_word:
        word = tl.load(packed + unit, mask=unit < width, other=0).to(tl.uint32, bitcast=True)
    else:
        word = tl.zeros((tile // 8,), tl.uint32)
        for k in tl.static_range(4):
            byte = tl.load(packed + unit * 4 + k, mask=unit * 4 + k < width, other=0)
            word |= byte.to(tl.uint32) << (8 * k)
    # The first of two codes is the high nibble.
    code = (word[:, None] >> ((nth ^ 1) * 4)) & 15
    at = unit[:, None] * 8 + nth
    there = at < count
    value = tl.load(table + code)
    largest = tl.load(absmax + unit * 8 // blocksize, mask=unit * 8 < count, other=0)
    value = (value * largest[:, None]).to(rounding)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["blocks"])
def _int8(out, weight, largest, columns, blocks, inverse: tl.constexpr, tile: tl.constexpr):
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    column = program % blocks * tile + tl.arange(0, tile)
    there = column < columns
    place = row * columns + column
    value = tl.load(weight + place, mask=there, other=0).to(tl.float32)
    value = value * tl.load(largest + row) * inverse
    tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


def hqq(
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
        _hqq[(triton.cdiv(out.numel(), HQQ_TILE),)](
            out, packed, scale.contiguous(), zero.contiguous(), out.numel(), columns, scheme.step,
            bits=packing.bits, held=packing.count, by_row=scheme.axis == 1,
            rounding=ROUNDING[scheme.dtype], tile=HQQ_TILE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "step"])
def _hqq(
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


def mlx(
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
    column_blocks = triton.cdiv(columns, MLX_TILE[1])
    with torch.cuda.device_of(out):
        _mlx[(triton.cdiv(rows, MLX_TILE[0]) * column_blocks,)](
            out, packed, scale, bias, rows, columns, packed.shape[1], column_blocks,
            bits=bits, size=size, tile_rows=MLX_TILE[0], tile_columns=MLX_TILE[1],
            # One rounding of product and sum would be another weight.
            enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "width", "column_blocks"])
def _mlx(
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
        code = _mlx_window(line, first * bits, there, width)[:, :, None] >> (nth * bits)
    else:
        low = _mlx_window(line, first * bits, there, width)[:, :, None]
        high = _mlx_window(line, (first + 4) * bits, there, width)[:, :, None]
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
def _mlx_window(line, bit, there, width):
    """uint32: the bits from `bit` on. What lies beyond a row's end is not read."""
    word, skip = bit >> 5, bit & 31
    low = tl.load(line + word, mask=there, other=0).to(tl.uint32, bitcast=True) >> skip
    inside = there & (word + 1 < width)
    high = tl.load(line + word + 1, mask=inside, other=0).to(tl.uint32, bitcast=True)
    # A shift by 32 is undefined: by 1 and the rest.
    return low | ((high << 1) << (31 - skip))


def exl3(
    out: torch.Tensor, trellis: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor, codebook: str
) -> None:
    """Fills `out` [O, I], contiguous, with the effective weight, rounded once from float32.

    - `trellis` int16 [I / 16, O / 16, 16 · K]; `suh`, `svh` float16, one an input, one an output: of
      sizes that are O and I up to whole blocks.
    """
    assert out.is_contiguous() and trellis.is_contiguous()
    rows, columns = out.shape
    column_blocks = triton.cdiv(columns, BLOCK)
    with torch.cuda.device_of(out):
        _exl3_decode[(triton.cdiv(rows, BLOCK) * column_blocks,)](
            out, trellis, suh.contiguous(), svh.contiguous(), rows, columns, trellis.shape[1],
            column_blocks, bits=trellis.shape[2] // TILE, codebook=CODEBOOKS.index(codebook),
            factor=MULTIPLIERS[codebook], added=ADDED[codebook], num_warps=_EXL3_WARPS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "column_blocks"])
def _exl3_decode(
    out, trellis, suh, svh, rows, columns, tiles, column_blocks,
    bits: tl.constexpr, codebook: tl.constexpr, factor: tl.constexpr, added: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = (block // column_blocks) * _EXL3_BLOCK + tl.arange(0, _EXL3_BLOCK)[:, None]
    column = (block % column_blocks) * _EXL3_BLOCK + tl.arange(0, _EXL3_BLOCK)[None, :]
    # A place's bits are input 0 and 3, output 3, input 1 and 2, output 0 to 2.
    of_input = (column & 1) | ((column & 8) >> 2) | ((column & 6) << 2)
    place = of_input | ((row & 8) >> 1) | ((row & 7) << 5)
    last = (place + 1) * bits
    half = (last - 1) >> 4
    before = tl.where(half == 0, 16 * bits - 1, half - 1)
    tile = (column >> 4).to(tl.int64) * tiles + (row >> 4)
    ring = trellis + tile * (16 * bits)
    # The first half of a word's bits are its high ones.
    low = tl.load(ring + (half ^ 1)).to(tl.uint16, bitcast=True).to(tl.uint32)
    high = tl.load(ring + (before ^ 1)).to(tl.uint16, bitcast=True).to(tl.uint32)
    code = (((high << 16) | low) >> (16 * (half + 1) - last).to(tl.uint32)) & 0xFFFF
    code = code * tl.full((), factor, tl.uint32) + tl.full((), added, tl.uint32)
    if codebook == _EXL3_MUL1:
        total = (code & 0xFF) + ((code >> 8) & 0xFF) + ((code >> 16) & 0xFF) + (code >> 24)
        # Exact before it is rounded to a half.
        value = ((1024 + total).to(tl.int32) * 1774 - 1329 * 2048).to(tl.float32) * (1.0 / 262144)
    else:
        code = (code & tl.full((), 0x8FFF8FFF, tl.uint32)) ^ tl.full((), 0x3B603B60, tl.uint32)
        value = _exl3_half(code & 0xFFFF) + _exl3_half(code >> 16)
    value = value.to(tl.float16).to(tl.float32)
    value = _exl3_rotate(_exl3_rotate(value).trans()).trans()
    of_inputs = tl.load(suh + column).to(tl.float32)
    of_outputs = tl.load(svh + row).to(tl.float32) * (1.0 / _EXL3_BLOCK)
    value = value * (of_outputs * of_inputs)
    there = (row < rows) & (column < columns)
    target = out + row.to(tl.int64) * columns + column
    tl.store(target, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _exl3_half(bits):
    """float32: the half of these bits."""
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _exl3_rotate(x):
    """Hadamard's matrix times each row: pairs of neighbours are added and subtracted, and the sums put
    before the differences, which brings those of the next distance beside each other."""
    for _ in tl.static_range(7):
        a, b = tl.split(x.reshape(_EXL3_BLOCK, _EXL3_BLOCK // 2, 2))
        x = tl.join(a + b, a - b).permute(0, 2, 1).reshape(_EXL3_BLOCK, _EXL3_BLOCK)
    return x
