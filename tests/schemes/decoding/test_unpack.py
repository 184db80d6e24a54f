"""Small codes out of bytes, against Python's own integers."""

import pytest
import torch
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.mxfp6.helpers import kE2M3ToFloat
from compressed_tensors.compressors.nvfp4.helpers import kE2M1ToFloat
from support.schemes import DTYPES, dtype_name, same

from scoremode.schemes.decoding.unpack import (
    BLOCK_ELEMENTS,
    E2M1,
    E2M3,
    E4M3,
    FLOATS,
    Elements,
    Scratch,
    exponent_scales,
    look_up,
    row_blocks,
    unpack_integers,
    unpack_rows,
)

TABLES = {4: E2M1, 6: E2M3, 8: E4M3}


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator).to(torch.uint8)


def codes_of(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Each row as one long integer, lowest byte first, cut from its lowest bits."""
    rows = [int.from_bytes(bytes(row.tolist()), "little") for row in packed]
    count = packed.shape[1] * 8 // bits
    return torch.tensor(
        [[(row >> i * bits) & ((1 << bits) - 1) for i in range(count)] for row in rows]
    )


def test_tables_are_the_formats():
    for table, magnitudes in ((E2M1, kE2M1ToFloat), (E2M3, kE2M3ToFloat)):
        same(table, torch.cat((magnitudes, -magnitudes)).float())
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
        value = float("nan") if code & 127 == 127 else value
        same(E4M3[code], torch.tensor(-value if code >= 128 else value))


@pytest.mark.parametrize("width", [1, 2, 3, 6, 7, 24, 31, 32, 33, 63, 257])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_look_up_at_any_width_and_storage_offset(bits, width):
    """Views of bytes that begin anywhere, as in a memory-mapped file."""
    width = width * 3 if bits == 6 else width
    for offset in range(4):
        packed = random_bytes(5 * width + offset)[offset:].view(5, width)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            actual = look_up(packed, FLOATS[bits], dtype, Scratch())
            same(actual, TABLES[bits][codes_of(packed, bits)].to(dtype))


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_look_up_has_every_pair_of_codes(bits):
    codes = 1 << bits
    first, second = torch.arange(codes).repeat(codes), torch.arange(codes).repeat_interleave(codes)
    both = first | second << bits
    # Pairs take 1, 1.5 and 2 bytes; two of them side by side take whole ones.
    both |= both.flip(0) << 2 * bits
    packed = torch.stack([both >> 8 * i & 255 for i in range(4 * bits // 8)], dim=1).to(torch.uint8)
    actual = look_up(packed, FLOATS[bits], torch.float32, Scratch())
    order = torch.stack((first, second, first.flip(0), second.flip(0)), dim=1)
    same(actual, TABLES[bits][order])


@pytest.mark.parametrize("columns", [1, 8, 13, 64])
@pytest.mark.parametrize("rows", [slice(0, 24), slice(8, 16)], ids=str)
def test_rows_of_words_of_eight_outputs(rows, columns):
    """Output 0 is the lowest of a word, after which come 2, 4, 6, 1, 3, 5 and 7."""
    words = random_bytes(columns, 4 * 3).view(torch.int32)
    in_word = (0, 2, 4, 6, 1, 3, 5, 7)
    expected = [
        [(int(words[i, o // 8]) >> 4 * in_word.index(o % 8) & 15) - 8 for i in range(columns)]
        for o in range(rows.start, rows.stop)
    ]
    actual = unpack_rows(
        words, Elements(4, order="outputs", shuffled=True), rows, columns, torch.float32, Scratch()
    )
    same(actual, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("rows", [slice(0, 12), slice(5, 6), slice(3, 12)], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rows_of_words_of_an_outputs_inputs(rows, bits):
    words = random_bytes(12, 4 * bits).view(torch.int32)
    expected = codes_of(words.view(torch.uint8), bits)[rows] - (1 << (bits - 1))
    packed, elements = words.T.contiguous(), Elements(bits, order="columns")
    actual = unpack_rows(packed, elements, rows, 32, torch.bfloat16, Scratch())
    same(actual, expected.bfloat16())


@pytest.mark.parametrize("words", [1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize("bits", range(2, 9))
def test_unpack_integers_of_either_layout(bits, words):
    packed = random_bytes(7, 4 * words, seed=bits).view(torch.int32)
    half = 1 << (bits - 1)
    dense = codes_of(packed.view(torch.uint8), bits) - half
    by_word = [codes_of(word.view(torch.uint8), bits) for word in packed.split(1, dim=1)]
    padded = torch.cat(by_word, dim=1) - half
    for layout, expected in (("dense", dense), ("padded", padded)):
        for columns in {1, expected.shape[1] - 1, expected.shape[1]} - {0}:
            actual = unpack_integers(packed, Elements(bits, layout=layout), columns, Scratch())
            assert actual.dtype == torch.int8
            assert torch.equal(actual.long(), expected[:, :columns])


def test_scratch_of_other_shapes_does_not_show():
    scratch = Scratch()
    for seed, (rows, width) in enumerate([(9, 33), (1, 3), (5, 96), (2, 15), (9, 33)]):
        packed = random_bytes(rows, width, seed=seed)
        for bits in (8, 6, 4):
            if bits == 6 and width % 3:
                continue
            actual = look_up(packed, FLOATS[bits], torch.bfloat16, scratch)
            same(actual, TABLES[bits][codes_of(packed, bits)].bfloat16())


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_exponent_scales_are_the_librarys(dtype):
    codes = torch.arange(256).to(torch.uint8)
    scales = exponent_scales(dtype, torch.device("cpu"))
    if dtype == torch.bfloat16:
        same(scales, decompress_mx_scale(codes))
    powers = 2.0 ** (codes.double() - 127)
    same(scales, powers.masked_fill(codes == 255, torch.inf).to(dtype))
    # The OCP's, and torch's own type.
    of_torch = exponent_scales(dtype, torch.device("cpu"), nan=True)
    same(of_torch, powers.masked_fill(codes == 255, torch.nan).to(dtype))
    same(of_torch, codes.view(torch.float8_e8m0fnu).double().to(dtype))


@pytest.mark.parametrize("device", BLOCK_ELEMENTS)
@pytest.mark.parametrize("share", [0, 1e-6, 0.3, 1, 2])
@pytest.mark.parametrize("rows", [0, 1, 5, 4097])
def test_row_blocks_cover_each_row_once(rows, share, device):
    columns = int(share * BLOCK_ELEMENTS[device])
    blocks = row_blocks((rows, columns), torch.device(device))
    covered = [row for block in blocks for row in range(block.start, block.stop)]
    assert covered == list(range(rows))
    assert all(b.stop - b.start == 1 or share < 1 for b in blocks)
