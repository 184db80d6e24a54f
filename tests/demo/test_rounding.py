"""What the demo's quantizer stores against what compressed-tensors stores."""

import pytest
import torch
from quantized import LibraryLinear, preset

from scoremode.demo.quantize import VARIANTS, quantize_weight

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
