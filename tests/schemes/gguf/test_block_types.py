"""ggml's block types against the gguf package, to the bit."""

import pytest
import torch
from gguf import GGML_QUANT_SIZES, quants
from support.gguf.block_checks import check_type
from support.gguf.blocks import HALVES, dequantized, random_blocks
from support.schemes import decode, same

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf import BLOCK_TYPES, Blocks
from scoremode.schemes.gguf_i_quants import grid, signs
from scoremode.schemes.gguf_types import halves, spread, taken

CPU = torch.device("cpu")


def test_all_of_the_gguf_package_are_there():
    """All that it decodes, but for floats."""
    decoded = {kind.name for kind in quants._type_traits}
    assert set(BLOCK_TYPES) == decoded - {"F32", "F16", "BF16"} and len(BLOCK_TYPES) == 23
    known = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}
    for name, kind in BLOCK_TYPES.items():
        assert name == kind.name and known[name] == (kind.values, kind.bytes)
        assert kind.values % kind.group == 0


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_equals_the_gguf_package(kind):
    check_type(BLOCK_TYPES[kind])


@pytest.mark.parametrize(("kind", "scales"), [("MXFP4", 1), ("NVFP4", 4)])
def test_all_scales_of_a_byte(kind, scales):
    """Those of MXFP4 that are subnormal and those whose values are infinite, NVFP4's two NaNs."""
    packed = random_blocks(kind, 256, 1)
    packed[:, :scales] = torch.arange(256, dtype=torch.uint8)[:, None]
    expected = dequantized(kind, packed)
    assert expected.isinf().any() == (kind == "MXFP4")
    same(decode(Blocks(kind, (256, expected.shape[1])), {kind: packed}, torch.float32), expected)


def test_a_half_in_four_parts():
    """IQ1_M's, in the highest bits of four words."""
    packed = random_blocks("IQ1_M", len(HALVES), 1)
    words = packed[:, 48:56].clone().view(torch.int16).int() & 0x0FFF
    given = torch.tensor(HALVES)[:, None] >> torch.tensor([0, 4, 8, 12])
    packed[:, 48:56] = (words | given << 12).short().view(torch.uint8)
    expected = dequantized("IQ1_M", packed)
    assert expected.isinf().all(1).sum() == 2 and expected.isnan().all(1).sum() == 2
    same(decode(Blocks("IQ1_M", (len(HALVES), 256)), {"IQ1_M": packed}, torch.float32), expected)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_points_of_codebooks_are_in_order(name):
    kind = getattr(quants, name)
    kind.init_grid()
    expected = torch.from_numpy(kind.grid).view(kind.grid_shape)
    assert grid(name, CPU).view(torch.int8).view(kind.grid_shape).float().equal(expected)


def test_iq1s_points_are_eighths():
    quants.IQ1_S.init_grid()
    points = torch.from_numpy(quants.IQ1_S.grid).view(2048, 8)
    found = grid("IQ1_S", CPU).view(torch.int8).view(2, 2048, 8).float()
    assert (found[0] / 8).equal(points + float(quants.IQ1_S.delta))
    assert (found[1] / 8).equal(points - float(quants.IQ1_S.delta))


def test_signs_are_bytes_of_ones():
    found = signs(CPU).view(torch.int8).view(256, 8)
    assert found[0b1000_0101].tolist() == [-1, 0, -1, 0, 0, 0, 0, -1]
    assert (-found.int() << torch.arange(8)).sum(1).equal(torch.arange(256))


def test_halves_and_bytes_of_each_block():
    blocks = torch.arange(40, dtype=torch.uint8).view(4, 10)
    blocks[:, 2:6] = torch.tensor([[1.5, -2.0]] * 4, dtype=torch.float16).view(torch.uint8)
    assert halves(blocks, 2, 2).tolist() == [[1.5, -2.0]] * 4
    out = taken(blocks, 7, 10, Scratch())
    assert out.is_contiguous() and out.tolist() == [[7 + n, 8 + n, 9 + n] for n in (0, 10, 20, 30)]


def test_codes_of_a_run_lie_above_each_other():
    generator = torch.Generator().manual_seed(0)
    for bits, run in ((4, 8), (2, 4), (1, 2)):
        packed = torch.randint(0, 256, (3, 16), generator=generator).to(torch.uint8)
        count = 8 // bits
        for to in range(8 - bits + 1):
            out = torch.empty(3, 16 * count, dtype=torch.uint8)
            assert spread(packed, bits, run, out, Scratch(), to) is out
            expected = [
                [
                    (row[first + at] >> nth * bits & (1 << bits) - 1) << to
                    for first in range(0, 16, run)
                    for nth in range(count)
                    for at in range(run)
                ]
                for row in packed.tolist()
            ]
            assert out.tolist() == expected
