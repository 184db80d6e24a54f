"""What the demo's quantizer stores against what compressed-tensors stores."""

import pytest
import torch
from quantized import LibraryLinear, preset
from safetensors.torch import load_file

from scoremode.demo.quantize import VARIANTS, quantize_folder, quantize_weight

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


def test_variants_say_what_their_formats_say():
    """Fields that the library's presets have too have the same values."""
    for variant in VARIANTS:
        if variant.name not in PRESETS:
            continue
        library = preset(PRESETS[variant.name]).model_dump(mode="json")
        (group,) = variant.config()["config_groups"].values()
        for part in ("weights", "input_activations"):
            for field, value in (group[part] or {}).items():
                assert library[part][field] == value, (variant.name, part, field)
            assert bool(group[part]) == bool(library[part])


@pytest.mark.parametrize("name", ["NVFP4A16", "NVFP4"])
def test_what_engines_fuse_has_one_global_scale(name, demo, tmp_path):
    (variant,) = (v for v in VARIANTS if v.name == name)
    quantize_folder(demo / "model", tmp_path / name, variant)
    tensors = load_file(tmp_path / name / "model.safetensors")
    dense = load_file(demo / "model" / "model.safetensors")
    prefix = "model.layers.1"
    for parts in (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                  ["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]):  # fmt: skip
        peak = max(float(dense[f"{prefix}.{p}.weight"].abs().max()) for p in parts)
        for kind in ["weight"] + ["input"] * (name == "NVFP4"):
            scales = {float(tensors[f"{prefix}.{p}.{kind}_global_scale"]) for p in parts}
            assert len(scales) == 1
            if kind == "weight":
                assert scales.pop() == pytest.approx(448 * 6 / peak, rel=1e-6)
