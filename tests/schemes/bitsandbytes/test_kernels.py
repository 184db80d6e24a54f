"""The CUDA decoders against plain torch, bit for bit; under Triton's interpreter without a GPU."""

import pytest
import torch
from support.golden_libraries import golden
from support.kernel_twins import check_decoder
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.schemes.bitsandbytes import FourBit, LlmInt8, Nested

triton = pytest.importorskip("triton", reason="needs Triton")
if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
kernels = pytest.importorskip("scoremode.schemes.bitsandbytes_kernels")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# A row's end within a block, a short last block, an odd number of codes, more than a program's.
SHAPES = [(1, 1), (3, 7), (6, 96), (5, 27), (40, 129)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    if DEVICE.type == "cpu":
        exact_bfloat16(monkeypatch)
        monkeypatch.setattr(kernels, "_TILE", 1024)


def random_case(shape, kind: str, dtype: torch.dtype, nested: bool) -> tuple[FourBit, dict]:
    random = torch.Generator().manual_seed(shape[0])
    count = shape[0] * shape[1]
    blocks = -(-count // 64)
    tensors = {
        "weight": torch.randint(0, 256, (-(-count // 2), 1), generator=random).to(torch.uint8),
        "weight.absmax": torch.rand(blocks, generator=random) * 3,
    }
    if nested:
        tensors["weight.absmax"] = torch.randint(0, 256, (blocks,), generator=random).to(
            torch.uint8
        )
        tensors["weight.nested_absmax"] = torch.rand(-(-blocks // 256), generator=random)
        tensors["weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
    return FourBit(shape, kind, 64, dtype, Nested(256, 0.377) if nested else None), tensors


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits(kind, shape):
    i = SHAPES.index(shape) + (kind == "fp4")
    scheme, tensors = random_case(shape, kind, DTYPES[i % 3], nested=i % 2 == 0)
    check_decoder(scheme, tensors, DTYPES[(i + 1) % 3])


def test_bytes_at_an_odd_place():
    scheme, tensors = random_case((6, 96), "nf4", torch.bfloat16, nested=False)
    moved = torch.cat((torch.zeros(1, dtype=torch.uint8), tensors["weight"].flatten()))
    tensors["weight"] = moved[1:].view(-1, 1)
    check_decoder(scheme, tensors, torch.bfloat16)


def test_codes_that_are_stored_as_floats():
    case = golden("bitsandbytes")["nf4-bf16-6x128"]
    assert case["weight"].dtype == torch.bfloat16
    scheme = FourBit((6, 128), "nf4", 64, torch.bfloat16)
    check_decoder(scheme, {n: case[n] for n in scheme.tensors}, torch.bfloat16)


@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (3, 1025)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eight_bits(shape, dtype):
    random = torch.Generator().manual_seed(1)
    tensors = {
        "weight": torch.randint(-128, 128, shape, generator=random).to(torch.int8),
        "SCB": torch.rand(shape[0], generator=random) * 5,
    }
    check_decoder(LlmInt8(shape, None), tensors, dtype)
