"""Sums of products under their scales, exact where all numbers are short."""

import pytest
import torch

from scoremode.engines.torch.matmul.products import scales_blocks
from scoremode.engines.torch.matmul.sums import (
    Operands,
    by_parts,
    finished,
    float8_mm_blocks,
    float_mm,
    int_mm,
    rounded,
)
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized


def short(rows: int, columns: int, group: int | None, seed: int, *, shared: bool = False):
    """Codes up to 7 and scales that are powers of two: no product or sum is rounded."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-7, 8, (rows, columns), generator=generator).float()
    scales = (1 if shared else rows, -(-columns // group) if group else 1)
    return Quantized(codes, torch.randint(-3, 4, scales, generator=generator).float().exp2())


@pytest.mark.parametrize(
    ("groups", "step"), [((64, 32), 32), ((None, 16), 16), ((48, None), 16), ((32, 32), 8)], ids=str
)
@pytest.mark.parametrize("shared", [False, True], ids=["a row", "all rows"])
def test_each_part_is_under_its_own_scales(groups, step, shared):
    """In more rows than a block has, and with a last group that is cut off."""
    x, w = short(300, 200, groups[0], 0, shared=shared), short(9, 200, groups[1], 1)
    wanted = x.dense(groups[0]).double() @ w.dense(groups[1]).double().T
    found = by_parts(Operands(x, w, Scratch()), step, groups, float_mm)
    assert found.dtype == torch.float32 and torch.equal(found.double(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_scales_then_bias_then_one_rounding(dtype):
    x, w = Quantized(torch.empty(2, 1), torch.tensor([[3.0], [0.5]])), short(4, 1, None, 1)
    sums = torch.tensor([[1, -2, 3, 1 << 20], [5, 7, -11, 13]]).to(dtype)
    bias = torch.tensor([0.0, 1.0, 2.0, 1e-3])
    wanted = sums.float() * w.scale.view(1, -1) * x.scale + bias
    operands = Operands(x, w, Scratch(), bias, torch.bfloat16)
    assert torch.equal(finished(sums.clone(), operands), wanted.bfloat16())
    plain = Operands(x, w, Scratch(), None, torch.float16)
    assert torch.equal(rounded(sums.float(), plain), sums.half())


@pytest.mark.parametrize("rows", [1, 16, 17])
def test_any_number_of_rows_of_int8(rows):
    x, w = short(rows, 64, None, 0).codes.to(torch.int8), short(8, 64, None, 1).codes.to(torch.int8)
    assert torch.equal(int_mm(x, w), x.int() @ w.int().T)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [1, 3, 4, 511])
@pytest.mark.parametrize(("outputs", "columns"), [(128, 128), (304, 640), (576, 512), (16, 1152)])
def test_blocks_of_float8(rows, outputs, columns):
    """Against float64, as near as the instructions' own sums of 14 bits are."""
    device = torch.device("cuda")
    if not scales_blocks(device):
        pytest.skip("this device or torch does not multiply blocks")
    generator = torch.Generator().manual_seed(rows)
    x, weight = (
        torch.randn(n, columns, generator=generator).to(torch.float8_e4m3fn)
        for n in (rows, outputs)
    )
    x_scale = torch.rand(rows, columns // 128, generator=generator) + 0.01
    blocks = torch.rand(-(-outputs // 128), columns // 128, generator=generator) + 0.01
    weight_scale = blocks.repeat_interleave(128, 0)[:outputs]
    sides = [
        Quantized(codes.to(device), scale.to(device))
        for codes, scale in ((x, x_scale), (weight, weight_scale))
    ]
    ours = float8_mm_blocks(Operands(*sides, Scratch(), dtype=torch.bfloat16)).cpu().double()
    exact, magnitude = (
        f(x.double() * x_scale.repeat_interleave(128, 1))
        @ f(weight.double() * weight_scale.repeat_interleave(128, 1)).T
        for f in (lambda m: m, torch.abs)
    )
    assert ours.shape == (rows, outputs)
    assert ((ours - exact).abs() <= exact.abs() * 2**-8 + magnitude * 1e-4).all()
