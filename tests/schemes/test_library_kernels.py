"""The CUDA decoders of single families against plain torch, bit for bit; interpreted without a GPU."""

import pytest
import torch
from support.decoding_cases import Random, differing
from support.families import exl3
from support.families.exl3_golden import CODEBOOKS
from support.families.qweight import Recipe, quantize
from support.golden_libraries import golden
from support.kernel_twins import by_kernel, by_twin, check_decoder, launches, require_triton
from support.schemes import DTYPES, random_weight

from scoremode.schemes.awq import GemvFast
from scoremode.schemes.bitsandbytes import FourBit, LlmInt8, Nested
from scoremode.schemes.exl3 import Exl3
from scoremode.schemes.fused_experts import Expert
from scoremode.schemes.hqq import PACKINGS, Grouped
from scoremode.schemes.mlx import Affine

# What overflows on a GPU without a word, numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several programs a weight, where they are interpreted."""
    require_triton(monkeypatch)
    if not torch.cuda.is_available():
        from scoremode.schemes import library_kernels

        monkeypatch.setattr(library_kernels, "HQQ_TILE", 512)
        monkeypatch.setattr(library_kernels, "MLX_TILE", (2, 64))
        monkeypatch.setattr(library_kernels, "BITSANDBYTES_TILE", 1024)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shape", [(16, 24), (24, 56)], ids=str)
def test_every_packing_of_hqq(shape, packing, axis):
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


@pytest.mark.parametrize("name", [n for n, c in golden("mlx").items() if "biases" in c])
def test_every_width_of_mlx(name):
    case, (bits, size, _) = golden("mlx")[name], name.split("-")
    scheme = Affine(tuple(case["dense"].shape), int(bits), int(size))
    check_decoder(scheme, case, torch.bfloat16 if size == "64" else case["dense"].dtype)


def test_an_expert_of_those_stored_as_one():
    case = {k: v for k, v in golden("mlx")["3-32-f16"].items() if k != "dense"}
    shape = tuple(golden("mlx")["3-32-f16"]["dense"].shape)
    own = {name: torch.stack([tensor.flip(0), tensor])[1] for name, tensor in case.items()}
    one = Expert(Affine(shape, 3, 32), tuple((name, name) for name in case))
    check_decoder(one, own, torch.bfloat16)


# A row's end within a block, a short last block, an odd number of codes, more than a program's.
SHAPES = [(1, 1), (3, 7), (6, 96), (5, 27), (40, 129)]


def four_bits(shape, kind: str, dtype: torch.dtype, nested: bool) -> tuple[FourBit, dict]:
    random = torch.Generator().manual_seed(shape[0])
    count = shape[0] * shape[1]
    blocks = -(-count // 64)
    tensors = {
        "weight": torch.randint(0, 256, (-(-count // 2), 1), generator=random).to(torch.uint8),
        "weight.absmax": torch.rand(blocks, generator=random) * 3,
    }
    if nested:
        codes = torch.randint(0, 256, (blocks,), generator=random)
        tensors["weight.absmax"] = codes.to(torch.uint8)
        tensors["weight.nested_absmax"] = torch.rand(-(-blocks // 256), generator=random)
        tensors["weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
    return FourBit(shape, kind, 64, dtype, Nested(256, 0.377) if nested else None), tensors


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits(kind, shape):
    i = SHAPES.index(shape) + (kind == "fp4")
    scheme, tensors = four_bits(shape, kind, DTYPES[i % 3], nested=i % 2 == 0)
    check_decoder(scheme, tensors, DTYPES[(i + 1) % 3])


def test_four_bits_at_an_odd_place():
    scheme, tensors = four_bits((6, 96), "nf4", torch.bfloat16, nested=False)
    moved = torch.cat((torch.zeros(1, dtype=torch.uint8), tensors["weight"].flatten()))
    tensors["weight"] = moved[1:].view(-1, 1)
    check_decoder(scheme, tensors, torch.bfloat16)


@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (3, 1025)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_llm_int8(shape, dtype):
    random = torch.Generator().manual_seed(1)
    tensors = {
        "weight": torch.randint(-128, 128, shape, generator=random).to(torch.int8),
        "SCB": torch.rand(shape[0], generator=random) * 5,
    }
    check_decoder(LlmInt8(shape, None), tensors, dtype)


def trellis(shape: tuple[int, int], bits: int, codebook: str, **how: bool) -> dict:
    torch.manual_seed(bits)
    stored = exl3.quantize(torch.randn(shape), bits, codebook, **how)
    return {n: t for n, t in stored.items() if n in ("trellis", "suh", "svh", "su", "sv")}


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_of_exl3_in_every_codebook(bits, codebook):
    stored = trellis((128, 256), bits, codebook)
    check_decoder(Exl3((128, 256), bits, codebook), stored, DTYPES[bits % 3])


@pytest.mark.parametrize("shape", [(129, 130), (256, 127), (1, 300)], ids=str)
def test_padded_sizes_of_exl3(shape):
    check_decoder(Exl3(shape, 3, "mul1"), trellis(shape, 3, "mul1"), torch.bfloat16)


def test_exl3_with_signs_and_with_factors_that_are_no_numbers():
    scheme = Exl3((256, 128), 4, "3inst", (True, True))
    check_decoder(scheme, trellis((256, 128), 4, "3inst", signs=True), torch.float32)
    stored = trellis((128, 128), 4, "mcg")
    stored["suh"][3], stored["svh"][5], stored["svh"][6] = torch.inf, torch.nan, 65504
    check_decoder(Exl3((128, 128), 4, "mcg"), stored, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "size"), [((8, 64), 32), ((12, 320), 64), ((20, 256), 256)])
def test_every_size_of_gemv_fast(shape, size, dtype):
    recipe = Recipe(4, size, order="gemv_fast")
    stored, _ = quantize(random_weight(shape[0], shape[1], torch.float32), recipe)
    check_decoder(GemvFast(shape, size), stored, dtype)


def test_any_bits_of_gemv_fast():
    random = Random(3)
    stored = {
        "qweight": random.bits((4, 192), torch.int16),
        "scales": random.scales((8, 16), torch.float16),
        "qzeros": random.scales((8, 16), torch.float16),
    }
    scheme = GemvFast((16, 192), 192)
    twin = by_twin(scheme, stored, "decode", torch.float32)
    with launches():
        ours = by_kernel(scheme, stored, "decode", torch.float32)
    assert differing(ours, twin) == 0 and twin.isnan().any() and twin.isinf().any()
