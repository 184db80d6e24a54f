"""The CUDA decoder of EXL3, bit for bit what plain torch gives.

A program makes a block of 128 outputs × 128 inputs: it reads the codes where they lie, computes their
values, and rotates them in its own memory, in the order of additions that plain torch has."""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from scoremode.schemes.exl3 import ADDED, BLOCK, CODEBOOKS, MULTIPLIERS, TILE

# Of 4, 8, 16 and 32 on an H200 (torch 2.11, 4 bits, 14336 × 4096): 447, 394, 326 and 226 G weights/s.
_WARPS = 4
_BLOCK = tl.constexpr(BLOCK)
_MUL1 = tl.constexpr(CODEBOOKS.index("mul1"))


def decode(
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
        _decode[(triton.cdiv(rows, BLOCK) * column_blocks,)](
            out, trellis, suh.contiguous(), svh.contiguous(), rows, columns, trellis.shape[1],
            column_blocks, bits=trellis.shape[2] // TILE, codebook=CODEBOOKS.index(codebook),
            factor=MULTIPLIERS[codebook], added=ADDED[codebook], num_warps=_WARPS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "column_blocks"])
def _decode(
    out, trellis, suh, svh, rows, columns, tiles, column_blocks,
    bits: tl.constexpr, codebook: tl.constexpr, factor: tl.constexpr, added: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = (block // column_blocks) * _BLOCK + tl.arange(0, _BLOCK)[:, None]
    column = (block % column_blocks) * _BLOCK + tl.arange(0, _BLOCK)[None, :]
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
    if codebook == _MUL1:
        total = (code & 0xFF) + ((code >> 8) & 0xFF) + ((code >> 16) & 0xFF) + (code >> 24)
        # Exact before it is rounded to a half.
        value = ((1024 + total).to(tl.int32) * 1774 - 1329 * 2048).to(tl.float32) * (1.0 / 262144)
    else:
        code = (code & tl.full((), 0x8FFF8FFF, tl.uint32)) ^ tl.full((), 0x3B603B60, tl.uint32)
        value = _half(code & 0xFFFF) + _half(code >> 16)
    value = value.to(tl.float16).to(tl.float32)
    value = _rotate(_rotate(value).trans()).trans()
    of_inputs = tl.load(suh + column).to(tl.float32)
    of_outputs = tl.load(svh + row).to(tl.float32) * (1.0 / _BLOCK)
    value = value * (of_outputs * of_inputs)
    there = (row < rows) & (column < columns)
    target = out + row.to(tl.int64) * columns + column
    tl.store(target, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _half(bits):
    """float32: the half of these bits."""
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _rotate(x):
    """Hadamard's matrix times each row: pairs of neighbours are added and subtracted, and the sums put
    before the differences, which brings those of the next distance beside each other."""
    for _ in tl.static_range(7):
        a, b = tl.split(x.reshape(_BLOCK, _BLOCK // 2, 2))
        x = tl.join(a + b, a - b).permute(0, 2, 1).reshape(_BLOCK, _BLOCK)
    return x
