"""The CUDA decoders of bitsandbytes' formats, bit for bit what plain torch gives.

A weight is one run of elements to them: a block of 4-bit codes may begin in one row and end in the
next. A thread has eight elements beside each other, four bytes of 4-bit codes, which lie in one
block, since blocks have 32 of them at least.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import torch
import triton
import triton.language as tl

from scoremode.schemes.decoding.kernels import ROUNDING

# Elements of a program.
_TILE = 4096


def decode(
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
        _four_bit[(triton.cdiv(count, _TILE),)](
            out, packed.view(torch.int32) if by_word else packed, absmax, table, count,
            width if by_word else len(packed), blocksize=blocksize, by_word=by_word,
            rounding=ROUNDING[rounding], tile=_TILE,
        )  # fmt: skip


def decode_int8(
    out: torch.Tensor, weight: torch.Tensor, largest: torch.Tensor, inverse: float
) -> None:
    """Fills `out` [O, I], contiguous, with `weight` int8 · `largest` float32 [O] · `inverse`."""
    rows, columns = out.shape
    assert out.is_contiguous() and weight.is_contiguous()
    blocks = triton.cdiv(columns, _TILE)
    with torch.cuda.device_of(out):
        _int8[(rows * blocks,)](
            out, weight, largest, columns, blocks, inverse=inverse, tile=_TILE
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
