"""What the demo's quantizer stores against what compressed-tensors stores."""

import pytest
import torch
from support.families.float8_blocks import dequantize
from support.families.float8_blocks import quantize as quantize_blocks
from support.families.qweight import Recipe
from support.families.qweight import quantize as quantize_words
from support.quantized import LibraryLinear, preset

from scoremode.demo.quantize import VARIANTS, quantize_weight
from scoremode.demo.rounding import float8_by_block, qweight_by_output

PRESETS = {
    "FP8_DYNAMIC": "FP8_DYNAMIC",
    "W8A8": "W8A8",
    "MXFP4A16": "MXFP4A16",
    "NVFP4A16": "NVFP4A16",
    "NVFP4": "NVFP4",
}


def weight(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Rows of very different sizes, one of zeros."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(24, 192, generator=generator)
    values *= torch.logspace(-6, 3, 24).unsqueeze(1)
    values[5] = 0
    return values.to(dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PRESETS)
def test_stores_what_the_library_stores(name, seed):
    (variant,) = (v for v in VARIANTS if v.name == name)
    dense = weight(torch.float32, seed)
    library = LibraryLinear(dense, preset(PRESETS[name]), dense)
    assert variant.format == library.format
    ours, theirs = quantize_weight(dense, variant), library.stored()
    theirs.pop("input_global_scale", None)
    assert ours.keys() == theirs.keys()
    for suffix, tensor in ours.items():
        assert tensor.dtype == theirs[suffix].dtype and tensor.shape == theirs[suffix].shape
        same = tensor.view(torch.uint8) == theirs[suffix].view(torch.uint8)
        assert same.all(), f"{suffix}: {(~same).sum()} bytes differ"


def test_awqs_words_are_those_of_the_tests_packer():
    dense = torch.randn(24, 192, generator=torch.Generator().manual_seed(0))
    ours = qweight_by_output(dense, 32)
    theirs, effective = quantize_words(dense, Recipe(order="outputs"))
    assert ours.keys() == theirs.keys()
    # That one has no zero point of 0, and rounds by the scale before it is float16.
    for suffix in ("qzeros", "scales"):
        assert torch.equal(ours[suffix], theirs[suffix]), suffix
    # Within one code, where a value lies between two.
    differ = ours["qweight"] != theirs["qweight"]
    assert differ.float().mean() < 0.02
    assert (effective.float() - dense).abs().max() < 0.3


def test_blocks_of_float8_are_those_of_the_tests_quantizer():
    dense = torch.randn(128, 192, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours, theirs = float8_by_block(dense, 64), quantize_blocks(dense, (64, 64))
    assert torch.equal(ours["weight_scale_inv"], theirs["weight_scale_inv"])
    assert torch.equal(ours["weight"].view(torch.uint8), theirs["weight"].view(torch.uint8))
    close = dequantize(dict(ours), (64, 64), torch.float32)
    assert (close - dense).abs().max() < dense.abs().max() / 16
