"""The CUDA decoder against plain torch, bit for bit; under Triton's interpreter without a GPU."""

import pytest
import torch
from support.golden_libraries import golden
from support.kernel_twins import check_decoder
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.schemes.hqq import PACKINGS, Grouped

triton = pytest.importorskip("triton", reason="needs Triton")
if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
kernels = pytest.importorskip("scoremode.schemes.hqq_kernels")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    if DEVICE.type == "cpu":
        exact_bfloat16(monkeypatch)
        monkeypatch.setattr(kernels, "_TILE", 512)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shape", [(16, 24), (24, 56)], ids=str)
def test_every_packing(shape, packing, axis):
    random = torch.Generator().manual_seed(1)
    chosen, size = PACKINGS[packing], 8
    dtype = DTYPES[(list(PACKINGS).index(packing) + axis) % 3]
    scheme = Grouped(shape, chosen.bits, size, axis, chosen, dtype)
    top = 1 << 30 if chosen.dtype == torch.int32 else 256
    packed = torch.randint(0, top, (scheme.step, scheme.grid[1]), generator=random)
    groups = (scheme.grid[0], 1) if axis else (1, scheme.grid[1])
    tensors = {
        "W_q": packed.to(chosen.dtype),
        "scale": torch.randn(groups, generator=random).to(dtype),
        "zero": torch.randn(groups, generator=random).mul(4).to(dtype),
    }
    check_decoder(scheme, tensors, DTYPES[axis])


def test_codes_that_are_stored_as_floats():
    name, case = next(
        (n, c) for n, c in golden("hqq").items() if c["W_q"].is_floating_point() and n[0] == "3"
    )
    dense = case["dense"]
    size = int(case["group_size"])
    scheme = Grouped(tuple(dense.shape), 3, size, 0, PACKINGS["3bit_32"], dense.dtype)
    check_decoder(scheme, {n: case[n] for n in scheme.tensors}, dense.dtype)
    assert "axis0" in name
