"""Quantized variants of the demo model, in the formats that vLLM's CPU build reads.

Weight-only ones come from the demo's own quantizer. The two with quantized activations are written
here: round to nearest, one scale a channel, activations quantized per token as they come.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from engines.vllm.dtypes import SERVED
from safetensors.torch import load_file, save_file

from scoremode.demo.quantize import Variant, quantize_folder

QUANTIZED = ("W4A16", "W8A8", "FP8")
FORMATS = ("dense", *QUANTIZED)
# Tokens that a token of the form "sliding" attends to: a Mistral with the dense model's weights.
SLIDING = 64
# Of two ranks, each has 96 of 192 inputs and 256 of 512: groups of 32 are whole in all of them.
_GROUP = 32
_ACTIVATIONS = {"strategy": "token", "dynamic": True, "symmetric": True, "num_bits": 8}


def write_checkpoint(source: Path, folder: Path, form: str) -> Path:
    """The dense model in `source` as one of FORMATS, or "sliding", to be computed in SERVED, in
    `folder`, which must not exist."""
    if form == "W4A16":
        quantize_folder(source, folder, Variant("W4A16", 4, _GROUP))
    else:
        shutil.copytree(source, folder)
    if form in ("W8A8", "FP8"):
        _quantize(source, folder, form)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"dtype": SERVED}
    if form == "sliding":
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
        config["sliding_window"] = SLIDING
    path.write_text(json.dumps(config, indent=2))
    return folder


def _quantize(source: Path, folder: Path, form: str) -> None:
    tensors = load_file(source / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        quantized, scale = _per_channel(tensors[name], form)
        tensors[name] = quantized
        tensors[name.removesuffix("weight") + "weight_scale"] = scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": _quantization_config(form)}
    path.write_text(json.dumps(config, indent=2))


def _per_channel(weight: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Int8 or FP8 [O, I], and float32 scales [O, 1]."""
    wide = weight.float()
    largest = 127.0 if form == "W8A8" else torch.finfo(torch.float8_e4m3fn).max
    scale = wide.abs().amax(1, keepdim=True) / largest
    scaled = wide / scale
    if form == "W8A8":
        return scaled.round().to(torch.int8), scale
    return scaled.to(torch.float8_e4m3fn), scale


def _quantization_config(form: str) -> dict[str, Any]:
    kind = "int" if form == "W8A8" else "float"
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": kind,
                    "symmetric": True,
                    "strategy": "channel",
                    "dynamic": False,
                },
                "input_activations": _ACTIVATIONS | {"type": kind},
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
    }
