"""The CUDA kernels of products against their plain-torch twins: on a GPU, or interpreted."""

import pytest
import torch
from support.triton_interpreter import DEVICE

from scoremode.engines.torch.matmul.products import exact_int_product, float_product
from scoremode.engines.torch.matmul.sums import Operands
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized

triton = pytest.importorskip("triton", reason="needs Triton")
from scoremode.engines.torch.matmul.kernels import multiply_parts  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
# The interpreter takes the bits of bfloat16 for integers; float16 holds these codes as well.
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
SHAPES = [(3, 5, 256), (130, 131, 96), (5, 7, 300), (1, 1, 128)]


def integers(rows: int, columns: int, limit: int, group: int | None, seed: int) -> Quantized:
    """On the CPU: codes as float32, some of them at the limit."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-limit, limit + 1, (rows, columns), generator=generator).float()
    codes[0] = limit
    scales = -(-columns // group) if group else 1
    return Quantized(codes, torch.rand(rows, scales, generator=generator) + 0.5)


def at(q: Quantized, dtype: torch.dtype) -> Quantized:
    return Quantized(q.codes.to(dtype).to(DEVICE), q.scale.to(DEVICE))


def kernel(x: Quantized, w: Quantized, bias, groups, part: int, dtype) -> torch.Tensor:
    out = torch.empty(len(x.codes), len(w.codes), dtype=dtype, device=DEVICE)
    bias = None if bias is None else bias.to(DEVICE)
    multiply_parts(Operands(x, w, Scratch(), bias, dtype), out, groups, part)
    return out.cpu()


@pytest.mark.parametrize("dtype", [torch.int8, HALF])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", [(None, 32), (64, 32), (32, None), (64, 128)], ids=str)
def test_integers_under_scales_of_groups_are_the_same_bits(groups, shape, dtype):
    rows, outputs, columns = shape
    part = min(g for g in groups if g)
    x, w = integers(rows, columns, 127, groups[0], 0), integers(outputs, columns, 8, groups[1], 1)
    twin = float_product("integers", groups, part, torch.float32)
    for bias in (None, torch.randn(outputs)):
        ours = kernel(at(x, dtype), at(w, dtype), bias, groups, part, torch.float32)
        assert torch.equal(ours, twin.multiply(Operands(x, w, Scratch(), bias)))
    halves = kernel(at(x, dtype), at(w, dtype), None, groups, part, HALF)
    assert torch.equal(halves, twin.multiply(Operands(x, w, Scratch(), None, HALF)))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scale_for_all(shape):
    rows, outputs, columns = shape
    x, w = integers(rows, columns, 127, None, 0), integers(outputs, columns, 8, 32, 1)
    x = Quantized(x.codes, x.scale[:1])
    twin = float_product("integers", (None, 32), 32, torch.float32).multiply(
        Operands(x, w, Scratch())
    )
    ours = kernel(at(x, torch.int8), at(w, torch.int8), None, (None, 32), 32, torch.float32)
    assert torch.equal(ours, twin)


@pytest.mark.parametrize("shape", SHAPES)
def test_totals_of_integers_are_exact(shape):
    """Of codes that no int8 holds, and with a bias."""
    rows, outputs, columns = shape
    x, w = integers(rows, columns, 255, None, 0), integers(outputs, columns, 255, None, 1)
    bias = torch.randn(outputs)
    twin = exact_int_product(257, torch.float32).multiply(Operands(x, w, Scratch(), bias))
    ours = kernel(at(x, HALF), at(w, HALF), bias, (None, None), 128, torch.float32)
    assert torch.equal(ours, twin)


def test_more_entries_than_32_bits_reach(monkeypatch):
    from scoremode.engines.torch.matmul import kernels as matmul_kernel

    monkeypatch.setattr(matmul_kernel, "_REACH", 96 * 40)
    x, w = integers(100, 96, 127, None, 0), integers(33, 96, 8, 32, 1)
    twin = float_product("integers", (None, 32), 32, torch.float32).multiply(
        Operands(x, w, Scratch())
    )
    ours = kernel(at(x, torch.int8), at(w, torch.int8), None, (None, 32), 32, torch.float32)
    assert torch.equal(ours, twin)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, HALF])
def test_sums_of_floats_are_rounded_as_floats_are(dtype):
    generator = torch.Generator().manual_seed(0)
    x, w = (
        Quantized(
            torch.randn(rows, 256, generator=generator).to(torch.float8_e4m3fn).float(),
            torch.rand(rows, 2, generator=generator) + 0.5,
        )
        for rows in (33, 40)
    )
    exact, magnitude = (
        (a.dense(128).double() @ b.dense(128).double().T)
        for a, b in ((x, w), [Quantized(q.codes.abs(), q.scale) for q in (x, w)])
    )
    ours = kernel(at(x, dtype), at(w, dtype), None, (128, 128), 128, torch.float32)
    # Hopper keeps about 14 bits of a sum of float8.
    limit = 2.0**-13 if dtype == torch.float8_e4m3fn else 2.0**-21
    assert ((ours - exact).abs() <= limit * magnitude).all()
