"""The demo's variants: their configs, and scales that parts share."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support.quantized import preset

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.calibration import inputs_of_linears
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.schemes.decoding.unpack import Scratch
from scoremode.schemes.resolve import resolve

# Variant → compressed-tensors' preset of the same format.
PRESETS = {
    "FP8_DYNAMIC": "FP8_DYNAMIC",
    "W8A8": "W8A8",
    "MXFP4A16": "MXFP4A16",
    "NVFP4A16": "NVFP4A16",
    "NVFP4": "NVFP4",
}


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


def test_gptq_errs_less_than_the_nearest_value(demo, tmp_path):
    """By the outputs on the calibration text, which is what it is for."""
    inputs = inputs_of_linears(demo / "model")
    dense = load_file(demo / "model" / "model.safetensors")
    errors = {}
    for variant in VARIANTS:
        if variant.name not in ("W4A16-g32", "W4A16-g32-GPTQ"):
            continue
        folder = tmp_path / variant.name
        quantize_folder(demo / "model", folder, variant)
        checkpoint = open_checkpoint(str(folder))
        schemes = resolve(checkpoint).quantized
        total = 0.0
        for module, scheme in schemes.items():
            packed = {s: checkpoint.read(f"{module}.{s}") for s in scheme.tensors}
            out = torch.empty(scheme.shape)
            scheme.decode(packed, out, Scratch())
            error = (out - dense[f"{module}.weight"].float()).double()
            total += float(((error @ inputs[module].gram) * error).sum())
        errors[variant.name] = total
    assert errors["W4A16-g32-GPTQ"] < 0.6 * errors["W4A16-g32"]


def test_other_libraries_folders_are_read(demo, tmp_path):
    labels = {}
    for variant in VARIANTS[-3:]:
        quantize_folder(demo / "model", tmp_path / variant.name, variant)
        schemes = resolve(open_checkpoint(str(tmp_path / variant.name))).quantized
        assert len(schemes) == 21
        (labels[variant.name],) = {scheme.label for scheme in schemes.values()}
    assert labels == {
        "W4A16-g32-AWQ": "AWQ W4A16 g32 asym",
        "W4A16-g32-GPTQ": "GPTQ W4A16 g32",
        "FP8-block64": "FP8 block 64x64",
    }


def test_a_folder_is_a_model_with_its_tokenizer_and_other_tensors_stay(demo, tmp_path):
    quantize_folder(demo / "model", tmp_path / "w4", VARIANTS[1])
    names = {file.name for file in (tmp_path / "w4").iterdir()}
    assert names == {file.name for file in (demo / "model").iterdir() if file.suffix != ".md"}
    dense, ours = (load_file(at / "model.safetensors") for at in (demo / "model", tmp_path / "w4"))
    for name, tensor in dense.items():
        if name.endswith("_proj.weight"):
            assert f"{name}_packed" in ours and name not in ours
        else:
            assert torch.equal(ours[name], tensor)
    config = json.loads((tmp_path / "w4" / "config.json").read_text())
    assert config["quantization_config"] == VARIANTS[1].config()
