"""The CUDA decoder against plain torch, bit for bit; under Triton's interpreter without a GPU."""

import pytest
import torch
from support.families.exl3 import quantize
from support.families.exl3_golden import CODEBOOKS
from support.kernel_twins import check_decoder
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.schemes.exl3 import Exl3

triton = pytest.importorskip("triton", reason="needs Triton")
if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
pytest.importorskip("scoremode.schemes.exl3_kernels")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    if DEVICE.type == "cpu":
        exact_bfloat16(monkeypatch)


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_in_every_codebook(bits, codebook):
    torch.manual_seed(bits)
    stored = quantize(torch.randn(128, 256), bits, codebook)
    check_decoder(Exl3((128, 256), bits, codebook), tensors(stored), DTYPES[bits % 3])


@pytest.mark.parametrize("shape", [(129, 130), (256, 127), (1, 300)], ids=str)
def test_padded_sizes(shape):
    torch.manual_seed(1)
    stored = quantize(torch.randn(shape), 3, "mul1")
    check_decoder(Exl3(shape, 3, "mul1"), tensors(stored), torch.bfloat16)


def test_signs_and_factors_that_are_no_numbers():
    torch.manual_seed(2)
    stored = quantize(torch.randn(256, 128), 4, "3inst", signs=True)
    scheme = Exl3((256, 128), 4, "3inst", (True, True))
    check_decoder(scheme, {n: stored[n] for n in scheme.tensors}, torch.float32)
    stored = quantize(torch.randn(128, 128), 4, "mcg")
    stored["suh"][3], stored["svh"][5], stored["svh"][6] = torch.inf, torch.nan, 65504
    check_decoder(Exl3((128, 128), 4, "mcg"), tensors(stored), torch.bfloat16)


def tensors(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: stored[name] for name in ("trellis", "suh", "svh")}
