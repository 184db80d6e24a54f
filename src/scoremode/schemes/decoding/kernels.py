"""The CUDA decoder of every format: one Triton kernel from packed codes to a dense weight.

A row of any format is a run of codes of 2 to 8 bits. Eight of them come into one 32-bit window, or four
each into two, whatever the layout; from there all shifts are constants, and a thread writes its eight
values at once. What a code means is bit arithmetic and exact float32 operations; no float8 conversion,
which only newer GPUs have, and no table:

- an integer in the lowest bits of 2^23's mantissa is 2^23 plus it, and taking 2^23 and the zero point
  away is exact;
- a small float's bits put where float32 has its exponent and mantissa are its value, subnormals
  included, but for a power of two.

The product with the scale is made in float32 and rounded to the dtype that plain torch multiplies in,
which gives its bits: differences of integers have 8 bits, and bfloat16 and float16 scales 11 at most.

What differs between the weights of one model (rows, columns, strides) is an argument and no constant,
so that a model needs one compilation or two.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false

import torch
import triton
import triton.language as tl

from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.decoding.unpack import Elements

# Rows and columns of a program, and its warps. In `rows` a thread reads four units and writes them;
# where words lie side by side by output, lines of those are read and lines of rows written.
_TILES = {"rows": (4, 1024, 4), "columns": (64, 64, 4)}
# Words of eight outputs and columns of a program, and its warps.
_OUTPUTS_TILE = (32, 32, 4)
# Scales that a program pairs with their zero points.
_PAIRS_TILE = 1024
# Triton's dtypes of torch's, that values are rounded to.
ROUNDING = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def decode(
    out: torch.Tensor,
    packed: torch.Tensor,
    elements: Elements,
    scaling: Scaling,
    *,
    scale: torch.Tensor | None = None,
    whole: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    zero_offset: int = 0,
    rounding: torch.dtype = torch.float32,
    nan_scale: bool = False,
    multiplies: bool = False,
) -> None:
    """Fills `out` [O, I] with `(code - zero_point) · scale`, rounded to `rounding`, then to its dtype.

    - `out`: contiguous; any float dtype, or int8 for codes without scales that it holds.
    - `packed` [O, words or bytes]: int32, or a dtype of one byte; [O / 2, I] of pairs of rows.
      Words in another `elements.order` are transposed, and so are scales and zero points.
    - `scale`: as stored, by `scaling`; None gives the codes. bfloat16, float16, float32; float8 e4m3;
      or powers of two (uint8, E8M0; 255 is infinite, with `nan_scale` NaN).
    - `whole` float32 [1]: what e4m3 scales are divided by, or multiplied with where it `multiplies`.
    - `zero_point`: int8 as the scales are stored, or int32 words packed along the outputs as the
      weights are along the inputs.
    - `zero_offset`: what zero points are stored less.
    - `g_idx` [I], int32 or int64: the group of each input.
    """
    rows, columns = scaling.shape
    assert out.shape == scaling.shape and out.is_contiguous(), "out must be contiguous [O, I]"
    packed, layout, order = packed.contiguous(), elements.layout, elements.order
    if order == "rows" and layout != "pairs":
        packed = _words(packed)
    if packed.dtype != torch.int32 and layout != "pairs":
        layout = "bytes"
    of_scale = "none"
    if scale is not None:
        of_scale = {
            torch.float8_e4m3fn: "e4m3",
            torch.uint8: "e8m0",
            torch.float8_e8m0fnu: "e8m0",
        }.get(scale.dtype, "float")
        if of_scale == "e8m0" and nan_scale:
            of_scale = "e8m0 or nan"
        scale = scale.contiguous()
        scale = scale if of_scale == "float" else scale.view(torch.uint8)
    of_zero = "none"
    if zero_point is not None:
        of_zero = "packed" if zero_point.dtype == torch.int32 else "plain"
        zero_point = zero_point.contiguous()
    groups = scaling.stored_shape[1]
    zeros_width = groups if order == "rows" else 0
    if zero_point is not None and order != "rows":
        zeros_width = zero_point.shape[1]
    if order == "outputs":
        assert of_scale in ("none", "float") and of_zero != "plain" and g_idx is None
        assert rows == packed.shape[1] * 8, "words of eight outputs"
        tile_words, tile_columns, warps = _OUTPUTS_TILE
        width = packed.shape[1]
        blocks = triton.cdiv(columns, tile_columns)
        with torch.cuda.device_of(out):
            _decode_outputs[(triton.cdiv(width, tile_words) * blocks,)](
                out, packed, scale, zero_point, rows, columns, width, blocks,
                signed=elements.signed, shuffled=elements.shuffled, zero_offset=zero_offset,
                size=scaling.columns_of_one or 0, rounding=ROUNDING[rounding],
                tile_words=tile_words, tile_columns=tile_columns, num_warps=warps,
            )  # fmt: skip
        return
    of_pair = None
    if of_zero == "packed" and g_idx is not None and scale is not None and scale.itemsize == 2:
        of_pair = scale.dtype
        scale, of_zero = _paired(scale, zero_point, zeros_width, elements), "with scale"
    tile_rows, tile_columns, warps = _TILES[order]
    column_blocks = triton.cdiv(columns, tile_columns)
    with torch.cuda.device_of(out):
        _decode[(triton.cdiv(rows, tile_rows) * column_blocks,)](
            out, packed, scale, whole, zero_point, g_idx,
            rows, columns, packed.shape[0 if order == "columns" else 1], column_blocks,
            zeros_width, 0 if scaling.strategy == "tensor" else groups,
            bits=elements.bits, mantissa=elements.mantissa, bias=elements.bias,
            signed=elements.signed, layout=layout, order=order, of_scale=of_scale, of_zero=of_zero,
            paired=ROUNDING.get(of_pair), zero_offset=zero_offset, size=scaling.columns_of_one or 0,
            height=scaling.block[0] if scaling.block else 1,
            rounding=ROUNDING[rounding], multiplies=multiplies, tile_rows=tile_rows,
            tile_columns=tile_columns, num_warps=warps,
        )  # fmt: skip


def _paired(
    scale: torch.Tensor, zero_point: torch.Tensor, width: int, elements: Elements
) -> torch.Tensor:
    """int32 like `scale`, of 16 bits: its bits in the lower halves, codes of zero points in the upper.

    Where every element has a group of its own, reading them is most of the work: once instead of twice.
    """
    pairs = torch.empty(scale.shape, dtype=torch.int32, device=scale.device)
    across = scale.shape[1]
    with torch.cuda.device_of(pairs):
        _pair[(triton.cdiv(pairs.numel(), _PAIRS_TILE),)](
            pairs, scale.view(torch.int16), zero_point, pairs.numel(), across, width,
            bits=elements.bits, layout=elements.layout, order=elements.order, tile=_PAIRS_TILE,
        )  # fmt: skip
    return pairs


@triton.jit(do_not_specialize=["count", "across", "width"])
def _pair(
    pairs, scale, zero_point, count, across, width,
    bits: tl.constexpr, layout: tl.constexpr, order: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * tile + tl.arange(0, tile)
    known = place < count
    row = place // across if order == "rows" else place % across
    group = place % across if order == "rows" else place // across
    zero = _packed_zero(zero_point, row, group, width, known, bits, layout, order)
    factor = tl.load(scale + place, mask=known, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
    tl.store(pairs + place, (factor | (zero << 16)).to(tl.int32, bitcast=True), mask=known)


def _words(packed: torch.Tensor) -> torch.Tensor:
    """Returns `packed` as int32 words where bytes may be read so."""
    if packed.dtype == torch.int32:
        return packed
    packed = packed.view(torch.uint8)
    if packed.shape[1] % 4 or packed.storage_offset() % 4 or packed.data_ptr() % 4:
        return packed
    return packed.view(torch.int32)


# Divisibility of what is read one word at a time would only make for more compilations.
@triton.jit(
    do_not_specialize=["rows", "width", "column_blocks", "zeros_width", "stride"],
    do_not_specialize_on_alignment=["packed", "scale", "whole", "zero_point", "g_idx"],
)
def _decode(
    out, packed, scale, whole, zero_point, g_idx,
    rows, columns, width, column_blocks, zeros_width, stride,
    bits: tl.constexpr, mantissa: tl.constexpr, bias: tl.constexpr, signed: tl.constexpr,
    layout: tl.constexpr, order: tl.constexpr, of_scale: tl.constexpr, of_zero: tl.constexpr,
    paired: tl.constexpr, zero_offset: tl.constexpr, size: tl.constexpr, height: tl.constexpr,
    rounding: tl.constexpr, multiplies: tl.constexpr,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    # A tile is [units, rows, 8]; what is one value for a unit is [units, rows] as long as possible.
    # Units come first since Triton spreads a warp over the first axis: along a row, as it writes.
    block = tl.program_id(0)
    row = (block // column_blocks) * tile_rows + tl.arange(0, tile_rows)[None, :]
    units: tl.constexpr = tile_columns // 8
    first = (block % column_blocks * units + tl.arange(0, units)[:, None]) * 8
    nth = tl.arange(0, 8)[None, None, :]
    column = first[:, :, None] + nth
    there = (row < rows) & (first < columns)
    each_there = (row < rows)[:, :, None] & (column < columns)

    # Words of a line lie one after the other, or as far apart as there are outputs.
    line = packed + (row if order == "columns" else row.to(tl.int64) * width)
    step = rows if order == "columns" else None
    if layout == "pairs":
        pair = packed + (row // 2).to(tl.int64)[:, :, None] * width + column
        code = tl.load(pair, mask=each_there, other=0).to(tl.uint32) >> (row % 2 * bits)[:, :, None]
    elif bits <= 4:
        window = _window(line, first, there, width, step, bits, 8, layout)[:, :, None]
        code = window >> (nth * bits)
    else:
        low = _window(line, first, there, width, step, bits, 4, layout)[:, :, None]
        high = _window(line, first + 4, there, width, step, bits, 4, layout)[:, :, None]
        code = tl.where(nth < 4, low, high) >> (nth % 4 * bits)
    code &= (1 << bits) - 1

    # Where the scale and the zero point lie: one place for a unit, if all of it is in one group; one
    # for a row of the tile where all of that is, and reading them for each unit would take longest.
    by_element: tl.constexpr = g_idx is not None or size % 8 != 0
    by_row: tl.constexpr = order != "rows" and g_idx is None and size % tile_columns == 0
    if by_element:
        if g_idx is not None:
            group = tl.load(g_idx + column, mask=column < columns, other=0).to(tl.int32)
        else:
            group = column // size
        line_of = row[:, :, None]
        known = each_there
    elif by_row:
        group = block % column_blocks * tile_columns // size if size else block * 0
        line_of = row
        known = row < rows
    else:
        group = first // size if size else tl.zeros_like(first)
        line_of = row
        known = there
    if order == "rows":
        place = (line_of // height).to(tl.int64) * stride + group
    else:
        place = group.to(tl.int64) * rows + line_of

    if of_zero == "with scale":
        pair = tl.load(scale + place, mask=known, other=0).to(tl.uint32, bitcast=True)

    if mantissa:
        value = _small_float(code, bits, mantissa, bias)
    else:
        # Both are 2^23 and an integer.
        if signed:
            code ^= 1 << (bits - 1)
        base = tl.full(known.shape, (1 << (bits - 1)) + 8388608.0, tl.float32)
        if of_zero == "plain":
            base += tl.load(zero_point + place, mask=known, other=0).to(tl.float32)
        elif of_zero == "packed":
            # Stored plus half of their range, as the codes are, which drops out.
            zero = _packed_zero(zero_point, line_of, group, zeros_width, known, bits, layout, order)
            base = (zero | 0x4B000000).to(tl.float32, bitcast=True)
        elif of_zero == "with scale":
            base = ((pair >> 16) | 0x4B000000).to(tl.float32, bitcast=True)
        if of_zero != "none":
            base += zero_offset
        if not by_element:
            base = base[:, :, None]
        value = (code | 0x4B000000).to(tl.float32, bitcast=True) - base

    if of_scale != "none":
        if of_zero == "with scale":
            factor = (pair & 0xFFFF).to(tl.uint16).to(paired, bitcast=True).to(tl.float32)
        else:
            factor = _scale(scale, whole, place, known, of_scale, multiplies)
        if not by_element:
            factor = factor[:, :, None]
        value = (value * factor).to(rounding)
    target = out + row.to(tl.int64)[:, :, None] * columns + column
    tl.store(target, value.to(out.dtype.element_ty), mask=each_there)


@triton.jit(do_not_specialize=["blocks"])
def _decode_outputs(
    out, packed, scale, zero_point, rows, columns, width, blocks,
    signed: tl.constexpr, shuffled: tl.constexpr, zero_offset: tl.constexpr, size: tl.constexpr,
    rounding: tl.constexpr, tile_words: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """Words of eight outputs' codes of 4 bits: `packed` [I, words], scales [groups, O].

    They are read as they lie, and a tile [columns, outputs] of values is turned as it is written.
    """
    word = tl.program_id(0) // blocks * tile_words + tl.arange(0, tile_words)
    column = tl.program_id(0) % blocks * tile_columns + tl.arange(0, tile_columns)
    inside = (column < columns)[:, None] & (word < width)[None, :]
    line = packed + column.to(tl.int64)[:, None] * width
    words = tl.load(line + word[None, :], mask=inside, other=0).to(tl.uint32, bitcast=True)
    skip = _skip(tl.arange(0, 8), 4, shuffled)[None, None, :]
    code = words[:, :, None] >> skip & 15

    # One group for all columns of a tile, or each column's own: [1 or columns].
    if size == 0:
        group = tl.zeros((1,), tl.int64)
    elif size % tile_columns == 0:
        group = (tl.program_id(0) % blocks * tile_columns // size).to(tl.int64) + tl.arange(0, 1)
    else:
        group = (column // size).to(tl.int64)
    # Beyond the last column there is no group.
    known = (group * size < columns)[:, None] & (word < width)[None, :]
    if signed:
        code ^= 8
    if zero_point is not None:
        zeros = tl.load(zero_point + group[:, None] * width + word[None, :], mask=known, other=0)
        zero = zeros.to(tl.uint32, bitcast=True)[:, :, None] >> skip & 15
        if signed:
            zero ^= 8
        base = (zero | 0x4B000000).to(tl.float32, bitcast=True) + zero_offset
    else:
        base = 8388616.0
    value = (code | 0x4B000000).to(tl.float32, bitcast=True) - base
    if scale is not None:
        output = word[:, None] * 8 + tl.arange(0, 8)[None, :]
        place = group[:, None, None] * rows + output[None, :, :]
        factor = tl.load(scale + place, mask=known[:, :, None], other=0).to(tl.float32)
        value = (value * factor).to(rounding)

    row = tl.program_id(0) // blocks * (tile_words * 8) + tl.arange(0, tile_words * 8)
    target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    there = (row < rows)[:, None] & (column < columns)[None, :]
    turned = tl.trans(tl.reshape(value, (tile_columns, tile_words * 8)))
    tl.store(target, turned.to(out.dtype.element_ty), mask=there)


@triton.jit
def _skip(nth, bits: tl.constexpr, shuffled: tl.constexpr):
    """The place of the lowest bit of a word's nth code. Shuffled, even ones are in its lower half, odd
    ones in its upper."""
    return nth % 2 * 16 + nth // 2 * 4 if shuffled else nth * bits


@triton.jit
def _window(
    line, first, there, width, step, bits: tl.constexpr, count: tl.constexpr, layout: tl.constexpr
):  # fmt: skip
    """uint32: the `count` codes from column `first` on, in its lowest bits. What lies beyond a row's
    end is not read."""
    in_word: tl.constexpr = 32 // bits
    if layout == "bytes":
        byte = first * bits // 8
        window = tl.zeros(there.shape, tl.uint32)
        for k in tl.static_range(count * bits // 8):
            inside = there & (byte + k < width)
            window |= tl.load(line + byte + k, mask=inside, other=0).to(tl.uint32) << (8 * k)
    elif count * bits == 32:
        window = _word(line, first // count, there, width, step)
    elif layout == "padded":
        # A window may begin in one word and end in the next.
        word, skip = first // in_word, first % in_word * bits
        kept: tl.constexpr = in_word * bits
        window = (_word(line, word, there, width, step) & ((1 << kept) - 1)) >> skip
        if in_word % count != 0:
            window |= _word(line, word + 1, there, width, step) << (kept - skip)
    else:
        word, skip = first * bits >> 5, first * bits & 31
        window = _word(line, word, there, width, step) >> skip
        if 32 % (count * bits) != 0:
            # A shift by 32 is undefined: by 1 and the rest.
            window |= (_word(line, word + 1, there, width, step) << 1) << (31 - skip)
    return window


@triton.jit
def _word(line, word, there, width, step):
    place = line + word if step is None else line + word.to(tl.int64) * step
    return tl.load(place, mask=there & (word < width), other=0).to(tl.uint32, bitcast=True)


@triton.jit
def _packed_zero(
    packed, row, group, width, known,
    bits: tl.constexpr, layout: tl.constexpr, order: tl.constexpr,
):  # fmt: skip
    """uint32: the code of the zero point of `row` in `packed` [words, groups], or [groups, words]; a
    line of it has `width` entries."""
    if layout == "padded":
        word = row // (32 // bits)
        skip = row % (32 // bits) * bits
    else:
        # In 64 bits, for the rows of a vocabulary.
        word = row.to(tl.int64) * bits >> 5
        skip = (row.to(tl.int64) * bits & 31).to(tl.int32)
    if order == "rows":
        place, next_word = packed + word.to(tl.int64) * width + group, width
    else:
        place, next_word = packed + group.to(tl.int64) * width + word, 1
    zero = tl.load(place, mask=known, other=0).to(tl.uint32, bitcast=True) >> skip
    if layout == "dense" and 32 % bits != 0:
        over = known & (skip + bits > 32)
        following = tl.load(place + next_word, mask=over, other=0).to(tl.uint32, bitcast=True)
        zero |= (following << 1) << (31 - skip)
    return zero & ((1 << bits) - 1)


@triton.jit
def _scale(scale, whole, place, known, of_scale: tl.constexpr, multiplies: tl.constexpr):
    stored = tl.load(scale + place, mask=known, other=0)
    if of_scale == "float":
        return stored.to(tl.float32)
    code = stored.to(tl.uint32)
    if of_scale == "e8m0" or of_scale == "e8m0 or nan":
        # 2^-127 is a subnormal of float32; code 255 is its infinity.
        bits = tl.where(code == 0, 1 << 22, code << 23)
        if of_scale == "e8m0 or nan":
            bits = tl.where(code == 255, 0x7FC00000, bits)
        return bits.to(tl.float32, bitcast=True)
    value = _small_float(code, 8, 3, 7)
    if multiplies:
        value = value * tl.load(whole)
    elif whole is not None:
        # The plain division is not rounded correctly.
        value = tl.div_rn(value, tl.load(whole))
    return value


@triton.jit
def _small_float(code, bits: tl.constexpr, mantissa: tl.constexpr, bias: tl.constexpr):
    """float32 of e2m1, e2m3 or e4m3; only the last has a NaN, all of its bits but the sign."""
    rest: tl.constexpr = (1 << (bits - 1)) - 1
    magnitude = (code & rest) << (23 - mantissa)
    sign = (code & (rest + 1)) << (32 - bits)
    value = (magnitude | sign).to(tl.float32, bitcast=True) * (2.0 ** (127 - bias))
    if bits == 8:
        value = tl.where(code & rest == rest, float("nan"), value)
    return value
