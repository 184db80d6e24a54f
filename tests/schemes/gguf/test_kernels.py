"""The CUDA decoder of ggml's blocks against the gguf package, to the bit."""

import pytest
import torch
from support.gguf.blocks import HALVES, PLACES, dequantized, random_blocks
from support.gguf.kernels import check_kernel, scheme_of
from support.kernel_twins import by_kernel, check_decoder, launches, placed, require_triton
from support.schemes import same
from support.triton_interpreter import DEVICE

from scoremode.checkpoint.gguf.table import Layout
from scoremode.schemes.base import Scratch
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.gguf import BLOCK_TYPES, Permuted

# What overflows on a GPU without a word, numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    require_triton(monkeypatch)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_equals_the_gguf_package(kind):
    check_kernel(kind, PLACES.get(kind, ()))


def test_a_half_in_four_parts():
    """IQ1_M's, in the highest bits of four words."""
    packed = random_blocks("IQ1_M", len(HALVES), 1)
    words = packed[:, 48:56].clone().view(torch.int16).int() & 0x0FFF
    given = torch.tensor(HALVES)[:, None] >> torch.tensor([0, 4, 8, 12])
    packed[:, 48:56] = (words | given << 12).short().view(torch.uint8)
    with launches():
        ours = by_kernel(scheme_of("IQ1_M", packed), {"IQ1_M": packed}, "decode", torch.float32)
    same(ours, dequantized("IQ1_M", packed))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16], ids=str)
def test_codes_and_scales(kind, dtype):
    """Those of plain torch, whose products and sums are the weights."""
    packed = random_blocks(kind, 7, 2)
    scheme, stored = scheme_of(kind, packed), {kind: packed}
    expected = torch.empty(scheme.shape, dtype=dtype)
    scale, parts = scheme.factor(stored, expected, Scratch()), scheme.scales(stored)
    on_device = {kind: packed.to(DEVICE)}
    codes = torch.empty(scheme.shape, dtype=dtype, device=DEVICE)
    with launches() as names:
        ours = scheme.factor(on_device, codes, Scratch())
        own = scheme.scales(on_device)
    assert names == [f"factor {kind}", f"scales {kind}"]
    same(codes.cpu(), expected)
    same(ours.cpu(), scale)
    same(own.scale.cpu(), parts.scale)
    assert (own.minimum is None) == (parts.minimum is None)
    if own.minimum is not None and parts.minimum is not None:
        same(own.minimum.cpu(), parts.minimum)


@pytest.mark.parametrize("offset", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("kind", ["Q4_K", "Q4_0", "Q4_1", "Q5_1", "MXFP4", "IQ2_XXS", "IQ4_XS"])
def test_blocks_from_any_byte_on(kind, offset):
    packed = random_blocks(kind, 3, 5, seed=offset)
    memory = torch.zeros(offset + packed.numel(), dtype=torch.uint8)
    moved = memory[offset:].view(packed.shape).copy_(packed)
    with launches():
        ours = by_kernel(scheme_of(kind, packed), {kind: moved}, "decode", torch.bfloat16)
    same(ours, dequantized(kind, packed))


def test_rows_of_a_wider_tensor():
    packed = random_blocks("Q6_K", 4, 3)
    wide = torch.zeros(4, packed.shape[1] + 9, dtype=torch.uint8)
    wide[:, 5:-4] = packed
    stored = {"Q6_K": wide.to(DEVICE)[:, 5:-4]}
    out = torch.empty(4, 768, device=DEVICE)
    with launches():
        scheme_of("Q6_K", packed).decode(stored, out, Scratch())
    same(out.cpu(), dequantized("Q6_K", packed))


def test_experts_in_one_launch():
    packed = random_blocks("Q5_K", 9, 2).view(3, 3, -1)
    stacked = Stacked(3, Expert(scheme_of("Q5_K", packed[0]), (("Q5_K", "Q5_K"),)))
    out = torch.empty(3, 3, 512, dtype=torch.bfloat16, device=DEVICE)
    with launches() as names:
        stacked.decode({"Q5_K": placed(packed)}, out, Scratch())
    assert names == ["decode Q5_K"]
    same(out.cpu().flatten(0, 1), dequantized("Q5_K", packed.flatten(0, 1)))
    check_decoder(stacked.one, {"Q5_K": packed[1]}, torch.bfloat16)


def test_rows_in_another_order():
    packed = random_blocks("Q4_K", 16, 1)
    permuted = Permuted(scheme_of("Q4_K", packed), Layout(turns=2))
    check_decoder(permuted, {"Q4_K": packed}, torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_more_bytes_and_weights_than_31_bits_count():
    rows, count = (1 << 22) + 3, 16
    of = BLOCK_TYPES["Q8_0"]
    torch.manual_seed(1)
    packed = torch.randint(0, 64, (rows, count * of.bytes), dtype=torch.uint8, device=DEVICE)
    assert packed.numel() > 1 << 31
    out = torch.empty(rows, count * of.values, dtype=torch.bfloat16, device=DEVICE)
    scheme_of("Q8_0", packed).decode({"Q8_0": packed}, out, Scratch())
    for few in (slice(0, 100), slice(rows - 100, rows), slice(3_900_000, 3_900_100)):
        same(out[few].cpu(), dequantized("Q8_0", packed[few].cpu()))
