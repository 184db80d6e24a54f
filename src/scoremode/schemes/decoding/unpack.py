"""Small codes out of packed bytes, a block of rows at a time.

On a CPU the cheapest way from packed bytes to floats is a table: one look-up moves the two values of
a byte, or of two bytes, as a single integer. Widths that don't divide a byte go through windows of 16
bits, one column of the period at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

import torch

# Tensors by name: a module's, by their suffixes.
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Elements:
    """Codes of `bits`, a row's from its lowest bits on.

    - `mantissa`, `bias`: of small floats, sign in the top bit. With no mantissa codes are integers.
    - `signed`: two's complement, of 4 or 8 bits; other integers are stored plus 2^(bits-1).
    - `layout`: `dense` codes run on over words, `padded` ones don't cross a 32-bit word's end; `pairs`
      of two rows, in two's complement, share a byte, the first in the low nibble (ModelOpt's AWQ).
    - `order`: how a weight [O, I] lies: `rows` are [O, words]. `columns` are [words, O], each word with
      codes of one output's inputs. `outputs` are [I, words], each word with those of eight outputs.
      Scales and zero points are transposed as well in both: [groups, O] and [groups, words of outputs].
    - `shuffled`: a word's outputs lie 0 2 4 6 1 3 5 7 from the lowest bits on (AutoAWQ), else in order.
    """

    bits: int
    mantissa: int = 0
    bias: int = 0
    signed: bool = False
    layout: Literal["dense", "padded", "pairs"] = "dense"
    order: Literal["rows", "columns", "outputs"] = "rows"
    shuffled: bool = False

    @property
    def rows_together(self) -> int:
        """Rows that can only be unpacked together."""
        return 8 if self.order == "outputs" else 2 if self.layout == "pairs" else 1


SIGNED_BYTES = Elements(8, signed=True)
# e2m1, e2m3 and e4m3 by their bits.
FLOATS = {4: Elements(4, 1, 1), 6: Elements(6, 3, 1), 8: Elements(8, 3, 7)}

# The place in a word of each of eight outputs' codes, where they are shuffled.
_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)

# Elements decoded at a time: on a CPU the scratch of a block stays in a core's cache, on a GPU a block
# is large enough to be worth its launches.
BLOCK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M3 = tuple(m / 8 for m in range(8)) + tuple(
    (1 + m / 8) * 2**e for e in range(3) for m in range(8)
)
# All values of a small float by their code, sign in the top bit (OCP Microscaling 1.0).
E2M1 = torch.tensor(_E2M1 + tuple(-v for v in _E2M1))
E2M3 = torch.tensor(_E2M3 + tuple(-v for v in _E2M3))
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
_SMALL_FLOATS = {4: E2M1, 6: E2M3, 8: E4M3}


class Scratch:
    """Buffers that are reused from one decode to the next, by role, dtype and device."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def get(
        self, role: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """An uninitialised contiguous tensor, valid until the role is asked for again."""
        key, size = (role, dtype, device), prod(shape)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)


def row_blocks(shape: tuple[int, int], device: torch.device, multiple: int = 1) -> list[slice]:
    """Slices over the rows of a weight of `shape`, to be decoded one after the other; all begin at a
    `multiple`."""
    rows, columns = shape
    step = max(1, BLOCK_ELEMENTS[device.type] // max(1, columns) // multiple) * multiple
    return [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def unpack_rows(
    packed: torch.Tensor,
    elements: Elements,
    rows: slice,
    columns: int,
    dtype: torch.dtype,
    scratch: Scratch,
) -> torch.Tensor:
    """Values [rows, columns] of `dtype`, valid until the next call, of these rows of a weight that is
    `packed` in any order. They begin and end at multiples of `elements.rows_together`."""
    if elements.layout == "pairs":
        both = packed[rows.start // 2 : rows.stop // 2]
        q = scratch.get("values", (2 * len(both), columns), dtype, packed.device)
        moved = scratch.get("nibbles", tuple(both.shape), torch.uint8, packed.device)
        # The shift back brings the sign with it.
        torch.bitwise_left_shift(both, 4, out=moved)
        q[0::2].copy_(moved.view(torch.int8).bitwise_right_shift_(4))
        q[1::2].copy_(moved.copy_(both).view(torch.int8).bitwise_right_shift_(4))
        return q
    if elements.order == "rows":
        return unpack(packed[rows], elements, columns, dtype, scratch)
    if elements.order == "columns":
        words = _transposed(packed[:, rows], len(packed), scratch)
        return unpack(words, elements, columns, dtype, scratch)
    assert rows.start % 8 == 0 and rows.stop % 8 == 0, "words hold eight outputs each"
    width = -(-columns // 8)
    words = _transposed(packed[:, rows.start // 8 : rows.stop // 8], 8 * width, scratch, 8)
    # [8, n, width]: words of each of eight inputs, with eight outputs; then the other way round.
    by_eight = words.view(8, -1, width)
    _exchange(by_eight, scratch)
    by_row = scratch.get("words", (by_eight.shape[1], 8, width), torch.int32, packed.device)
    places = _OF_OUTPUT if elements.shuffled else range(8)
    torch.stack([by_eight[at] for at in places], 1, out=by_row)
    return unpack(by_row.view(-1, width), elements, columns, dtype, scratch)


def _transposed(
    words: torch.Tensor, height: int, scratch: Scratch, together: int = 1
) -> torch.Tensor:
    """[together · n, height / together], valid until the next call, of [at most height, n]: `together`
    lines one after the other count as one, and those that are missing as zeros.

    By way of a copy, since the lines of a weight are as far apart as makes all words of a column fall
    into the same few places of a cache.
    """
    straight = scratch.get("straight", (height, words.shape[1]), words.dtype, words.device)
    straight[: len(words)] = words
    straight[len(words) :] = 0
    straight = straight.view(height // together, -1)
    turned = scratch.get("turned", straight.T.shape, words.dtype, words.device)
    return turned.copy_(straight.T)


def _exchange(words: torch.Tensor, scratch: Scratch) -> None:
    """Nibble k of int32 `words`[j] becomes nibble j of `words`[k], in place; `words` [8, …].

    As a matrix is transposed by halves: its upper right quarter changes places with its lower left
    one, and then the same in each quarter.
    """
    for apart, lower in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        first, second = words.unflatten(0, (-1, 2, apart)).unbind(1)
        bits = 4 * apart
        different = scratch.get("different", tuple(first.shape), words.dtype, words.device)
        torch.bitwise_right_shift(first, bits, out=different)
        different.bitwise_xor_(second).bitwise_and_(lower)
        second ^= different
        first ^= different.bitwise_left_shift_(bits)


def by_output(values: torch.Tensor) -> torch.Tensor:
    """Values [n, outputs] in order, from those of words in which they are shuffled."""
    return values.unflatten(1, (-1, 8))[:, :, _OF_OUTPUT].flatten(1)


def unpack(
    packed: torch.Tensor, elements: Elements, columns: int, dtype: torch.dtype, scratch: Scratch
) -> torch.Tensor:
    """Values [rows, columns] of `dtype`, valid until the next call, from [rows, bytes or words]."""
    bits, codes = elements.bits, packed.view(torch.uint8)
    if elements.mantissa or bits in (2, 4) or (bits == 8 and not elements.signed):
        return look_up(codes, elements, dtype, scratch)[:, :columns]
    values = scratch.get("values", (len(packed), columns), dtype, packed.device)
    if elements.signed:
        return values.copy_(packed)
    return values.copy_(unpack_integers(packed, elements, columns, scratch))


def look_up(
    packed: torch.Tensor, elements: Elements, dtype: torch.dtype, scratch: Scratch
) -> torch.Tensor:
    """[rows, n] of `dtype`, valid until the next call, from uint8 [rows, bytes].

    `elements` are integers of 2, 4 or 8 bits or small floats; n is 4, 2, 4/3 or 1 times `bytes`.
    """
    (rows, width), bits = packed.shape, elements.bits
    count = width * 8 // bits
    # One index moves as many values as it has codes of: those of two bytes where they may be read so.
    in_words = bits in (4, 8) and width % 2 == 0 and packed.storage_offset() % 2 == 0
    at_once = 4 if bits == 2 or (bits == 4 and in_words) else 2
    table = _runs(elements, at_once, dtype, packed.device)
    index = scratch.get("index", (rows, -(-count // at_once)), torch.int32, packed.device)
    if in_words:
        index.copy_(packed.view(torch.uint16))
    elif bits == 6:
        _windows(packed, 12, index, scratch)
    elif bits == 8:
        # The last code of an odd row is paired with code 0, which is cut off below.
        index.copy_(packed[:, 0::2])
        high = index[:, : width // 2]
        high += packed[:, 1::2].int().bitwise_left_shift_(8)
    else:
        index.copy_(packed)
    out = scratch.get("runs", (index.numel(),), table.dtype, packed.device)
    torch.index_select(table, 0, index.view(-1), out=out)
    return out.view(dtype).view(rows, -1)[:, :count]


def look_up_scales(codes: torch.Tensor, scales: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Scales [rows, groups] of their one-byte codes, `scales` [256] by code; valid until the next
    call. Converting float8 itself costs more than all the rest of decoding."""
    index = scratch.get("scale index", (codes.numel(),), torch.int32, codes.device)
    index.view(codes.shape).copy_(codes.view(torch.uint8))
    out = scratch.get("scales", tuple(codes.shape), scales.dtype, codes.device)
    torch.index_select(scales, 0, index, out=out.view(-1))
    return out


def unpack_integers(
    packed: torch.Tensor, elements: Elements, columns: int, scratch: Scratch
) -> torch.Tensor:
    """int8 [rows, columns] of int32 words [rows, words], valid until the next call.

    Source: compressed-tensors' pack_to_int32, from 0.18 on (dense) and up to 0.17 (padded).
    """
    bits = elements.bits
    half = 1 << (bits - 1)
    rows, device = len(packed), packed.device
    if elements.layout == "dense" or 32 % bits == 0:
        count = -(-columns // 8) * 8
        out = scratch.get("integers", (rows, count), torch.uint8, device)
        _windows(packed.view(torch.uint8), bits, out, scratch)
    else:
        per_word = 32 // bits
        out = scratch.get("integers", (rows, packed.shape[1] * per_word), torch.uint8, device)
        by_word = out.view(rows, -1, per_word)
        shifted = scratch.get("window", tuple(packed.shape), torch.int32, device)
        for j in range(per_word):
            torch.bitwise_right_shift(packed, j * bits, out=shifted)
            by_word[:, :, j] = shifted.bitwise_and_(2 * half - 1)
    if elements.signed:
        out.bitwise_xor_(half)
    return out.sub_(half).view(torch.int8)[:, :columns]


def _windows(packed: torch.Tensor, bits: int, out: torch.Tensor, scratch: Scratch) -> None:
    """Fills `out` [rows, n] with n runs of `bits` ≤ 12 bits from bytes [rows, bytes], lowest first.

    Bytes that are missing at the end count as zero.
    """
    rows, width = packed.shape
    per_period = {12: 2}.get(bits, 8)
    period = per_period * bits // 8
    periods = -(-out.shape[1] // per_period)
    device = packed.device
    if width != periods * period:
        padded = scratch.get("padded", (rows, periods * period), torch.uint8, device)
        kept = min(width, periods * period)
        padded[:, :kept] = packed[:, :kept]
        padded[:, kept:] = 0
        packed = padded
    by_period = packed.view(rows, periods, period)
    assert out.shape[1] % per_period == 0
    by_run = out.view(rows, periods, per_period)
    window = scratch.get("window", (rows, periods), torch.int16, device)
    high = scratch.get("high", (rows, periods), torch.int16, device)
    for j in range(per_period):
        low, shift = divmod(j * bits, 8)
        window.copy_(by_period[:, :, low])
        if shift + bits > 8:
            window |= high.copy_(by_period[:, :, low + 1]).bitwise_left_shift_(8)
        # The sign that a shift drags in lies above the mask: shift + bits ≤ 16.
        by_run[:, :, j] = window.bitwise_right_shift_(shift).bitwise_and_((1 << bits) - 1)


@lru_cache(maxsize=8)
def exponent_scales(dtype: torch.dtype, device: torch.device, *, nan: bool = False) -> torch.Tensor:
    """[256]: E8M0 codes as powers of two, 2^(code - 127); the last one, NaN in the OCP's
    specification and with `nan`, is infinite in compressed-tensors."""
    scales = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127)
    scales[255] = torch.nan if nan else torch.inf
    return scales.to(dtype).to(device)


@lru_cache(maxsize=32)
def _runs(
    elements: Elements, length: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[codes^length]: the values of each run of codes, first code in the lowest bits, as one number
    as wide as all of them."""
    bits, count = elements.bits, 1 << elements.bits
    integers = (torch.arange(count) ^ (count // 2 if elements.signed else 0)) - count // 2
    values = _SMALL_FLOATS[bits] if elements.mantissa else integers.float()
    codes = torch.arange(count**length)
    runs = torch.stack([values[(codes >> (bits * j)) % count] for j in range(length)], 1)
    wide = {4: torch.int32, 8: torch.int64, 16: torch.complex128}[length * dtype.itemsize]
    return runs.to(dtype).view(wide).view(-1).to(device)
