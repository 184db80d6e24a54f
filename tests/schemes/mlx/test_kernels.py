"""The CUDA decoder against plain torch, bit for bit; under Triton's interpreter without a GPU."""

import pytest
import torch
from support.golden_libraries import golden
from support.kernel_twins import check_decoder
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.schemes.fused_experts import Expert
from scoremode.schemes.mlx import Affine, Mode, floats

triton = pytest.importorskip("triton", reason="needs Triton")
if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
kernels = pytest.importorskip("scoremode.schemes.mlx_kernels")

# What overflows on a GPU without a word, numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
CASES = golden("mlx")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    if DEVICE.type == "cpu":
        exact_bfloat16(monkeypatch)
        monkeypatch.setattr(kernels, "_TILE", (2, 64))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "biases" in case])
def test_every_width(name):
    case, (bits, size, _) = CASES[name], name.split("-")
    scheme = Affine(tuple(case["dense"].shape), int(bits), int(size))
    check_decoder(scheme, case, torch.bfloat16 if size == "64" else case["dense"].dtype)


def test_an_expert_of_those_stored_as_one():
    case = {k: v for k, v in CASES["3-32-f16"].items() if k != "dense"}
    shape = tuple(CASES["3-32-f16"]["dense"].shape)
    own = {name: torch.stack([tensor.flip(0), tensor])[1] for name, tensor in case.items()}
    one = Expert(Affine(shape, 3, 32), tuple((name, name) for name in case))
    check_decoder(one, own, torch.bfloat16)


@pytest.mark.parametrize("mode", [Mode("mxfp4", 32, 4), Mode("mxfp8", 32, 8), Mode("nvfp4", 16, 4)])
def test_small_floats(mode):
    case = CASES[mode.name]
    scheme = floats(tuple(case["dense"].shape), mode)
    check_decoder(scheme, case, torch.bfloat16)
