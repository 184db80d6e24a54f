"""EXL3's weights against the library's own, and against float64."""

import pytest
import torch
from support.families.exl3 import dense, hadamard, inner, quantize
from support.families.exl3_golden import CODEBOOKS, MADE, ROW_STEP, linear, made, signs
from support.schemes import decode, same

from scoremode.schemes.decoding import unpack
from scoremode.schemes.exl3 import Exl3


def scheme_of(stored: dict[str, torch.Tensor], codebook: str) -> Exl3:
    rows, columns, width = stored["trellis"].shape
    signs = "su" in stored, "sv" in stored
    return Exl3((columns * 16, rows * 16), width // 16, codebook, signs)


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, of the largest value."""
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_against_the_golden_file(bits, codebook):
    """The library rounds its weight to halves after each side: within 2^-10 of the largest."""
    stored, of_library = linear(bits, codebook)
    ours = decode(scheme_of(stored, codebook), stored, torch.float32).T
    assert off(ours[::ROW_STEP], of_library["dense"]) < 2**-10
    # A rounding of halves is all that is between them.
    near = torch.isclose(ours[::ROW_STEP], of_library["dense"].float(), rtol=2**-8, atol=1e-3)
    assert near.float().mean() > 0.99


@pytest.mark.parametrize("name", MADE)
def test_what_the_quantizer_says_that_it_made(name):
    """Its own weight is of factors that were not yet rounded to halves."""
    stored = made(name)
    ours = decode(scheme_of(stored, MADE[name]), stored, torch.float32).T
    assert off(ours[::ROW_STEP], stored["dense"]) < 2**-11
    # A channel of zeros.
    assert (ours[:, 7] == 0).all() and (ours != 0).float().mean() > 0.9


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_order_of_additions(bits, codebook, monkeypatch):
    torch.manual_seed(bits)
    stored = quantize(torch.randn(256, 384), bits, codebook)
    scheme = scheme_of(stored, codebook)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        same(decode(scheme, stored, dtype), stored["dense"])
    # One block of inputs at a time.
    monkeypatch.setitem(unpack.BLOCK_ELEMENTS, "cpu", 100)
    same(decode(scheme, stored, torch.float32), stored["dense"])


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_near_float64(codebook):
    torch.manual_seed(3)
    stored = quantize(torch.randn(256, 128), 4, codebook)
    exact = torch.from_numpy(hadamard(hadamard(inner(stored).astype("float64")).T)) / 128
    exact *= stored["svh"].double()[:, None] * stored["suh"].double()
    ours = decode(scheme_of(stored, codebook), stored, torch.float32)
    assert off(ours, exact) < 2**-22
    if codebook != "mul1":
        # Sums of values that are multiples of 2^-13 are exact.
        same(ours, exact.float())


def test_signs_alone():
    """As the first releases stored them: a bit for each input and output."""
    torch.manual_seed(5)
    stored = quantize(torch.randn(128, 256), 3, "3inst", signs=True)
    scheme = scheme_of(stored, "3inst")
    assert scheme.tensors == ("trellis", "su", "sv")
    same(decode(scheme, stored, torch.float32), stored["dense"])
    # Of the outputs alone, and as the library reads them.
    packed, factors = signs()
    stored["suh"] = torch.ones(256).half()
    ours, theirs = (
        decode(
            Exl3((128, 256), 3, "3inst", (False, one == "sv")), stored | {one: of}, torch.float32
        )
        for one, of in (("sv", packed), ("svh", factors))
    )
    same(ours, theirs)
    assert 0 < (factors < 0).sum() < 128


def test_padded_sizes():
    torch.manual_seed(6)
    stored = quantize(torch.randn(129, 130), 2, "mul1")
    whole = scheme_of(stored, "mul1")
    assert whole.shape == (256, 256) and whole.fitted((256, 256)) == whole
    cut = whole.fitted((129, 130))
    assert cut.shape == (129, 130) and cut.tensors == whole.tensors
    same(decode(cut, stored, torch.float32), stored["dense"])
    for other in ((128, 130), (257, 256), (129,), (1, 129, 130)):
        assert whole.fitted(other) is whole


def test_factors_that_are_no_numbers():
    torch.manual_seed(7)
    stored = quantize(torch.randn(128, 128), 2, "mcg")
    stored["suh"][3], stored["svh"][5], stored["svh"][6] = torch.inf, torch.nan, 65504
    stored["dense"] = dense(stored)
    assert stored["dense"].isnan().sum() >= 128 and stored["dense"].isinf().any()
    same(decode(scheme_of(stored, "mcg"), stored, torch.float32), stored["dense"])
