"""The CUDA decoder against plain torch, bit for bit; under Triton's interpreter without a GPU."""

import pytest
import torch
from golden_libraries import golden
from schemes_helpers import same
from triton_interpreter import DEVICE, exact_bfloat16

from scoremode import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.hqq.grouped import PACKINGS, Grouped

triton = pytest.importorskip("triton", reason="needs Triton")
if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
kernels = pytest.importorskip("scoremode.schemes.hqq.kernels")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    if DEVICE.type == "cpu":
        exact_bfloat16(monkeypatch)
        monkeypatch.setattr(kernels, "_TILE", 512)


def both(monkeypatch, scheme, tensors, dtype) -> None:
    """With a margin around the weight that nothing may be written to."""
    twin = torch.full(scheme.shape, 77, dtype=torch.float32).to(dtype)
    scheme.decode(tensors, twin, Scratch())
    names: list[str] = []

    def attempt(name, device, run):
        names.append(name)
        run()
        return True

    monkeypatch.setattr(fallback, "attempt", attempt)
    memory = torch.full((twin.numel() + 32,), 77, dtype=torch.float32).to(dtype).to(DEVICE)
    out = memory[16:-16].view(scheme.shape)
    scheme.decode({n: t.to(DEVICE) for n, t in tensors.items()}, out, Scratch())
    assert names == [f"decode {scheme.label}"]
    assert (memory[:16].float() == 77).all() and (memory[-16:].float() == 77).all()
    same(out.cpu(), twin)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shape", [(16, 24), (24, 56)], ids=str)
def test_every_packing(monkeypatch, shape, packing, axis):
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
    both(monkeypatch, scheme, tensors, DTYPES[axis])


def test_codes_that_are_stored_as_floats(monkeypatch):
    name, case = next(
        (n, c) for n, c in golden("hqq").items() if c["W_q"].is_floating_point() and n[0] == "3"
    )
    dense = case["dense"]
    size = int(case["group_size"])
    scheme = Grouped(tuple(dense.shape), 3, size, 0, PACKINGS["3bit_32"], dense.dtype)
    both(monkeypatch, scheme, {n: case[n] for n in scheme.tensors}, dense.dtype)
    assert "axis0" in name
