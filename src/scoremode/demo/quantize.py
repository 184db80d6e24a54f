"""Makes quantized variants of a dense checkpoint, in published formats.

Not a way to quantize models well (llm-compressor is): all but AWQ and GPTQ take nothing but the nearest
value, and those two are in their simplest form. It exists so that the demo and the tests have real
checkpoints without that library.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from scoremode.demo import rounding
from scoremode.demo.calibration import (
    gptq,
    inputs_of_linears,
    observe,
    scale_by_inputs,
)
from scoremode.lib.files import write_text
from scoremode.schemes.patterns import whole_of

_FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_INT8_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_NVFP4_LOCAL = _NVFP4 | {"dynamic": "local"}


# Fields of other libraries' configs, by their `quant_method`.
_METHODS: dict[str, Callable[["Variant"], dict[str, Any]]] = {
    "awq": lambda v: {
        "bits": v.bits,
        "group_size": v.group_size,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": None,
    },
    "gptq": lambda v: {
        "bits": v.bits,
        "group_size": v.group_size,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "gptq",
    },
    "fp8": lambda v: {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [v.group_size, v.group_size],
        "modules_to_not_convert": ["lm_head"],
    },
}


@dataclass(frozen=True)
class Variant:
    """A format and its settings.

    - `format`: compressed-tensors', or a `quant_method` of others: `awq`, `gptq`, `fp8`.
    - `group_size`: of pack-quantized, awq and gptq, None is a channel; the sides of fp8's blocks.
    """

    name: str
    bits: int
    group_size: int | None = None
    format: str = "pack-quantized"
    inputs: Mapping[str, Any] | None = None

    def config(self) -> dict[str, Any]:
        """The `quantization_config` that says so."""
        if self.format in _METHODS:
            return {"quant_method": self.format} | _METHODS[self.format](self)
        channel = {"num_bits": self.bits, "strategy": "channel", "group_size": None}
        weights = {
            "pack-quantized": channel
            | {"type": "int"}
            | ({"strategy": "group", "group_size": self.group_size} if self.group_size else {}),
            "int-quantized": channel | {"type": "int"},
            "float-quantized": channel | {"type": "float"},
            "mxfp4-pack-quantized": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "scale_dtype": "torch.uint8",
            },
            "nvfp4-pack-quantized": _NVFP4,
        }[self.format]
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": weights | {"symmetric": True},
                    "input_activations": self.inputs and dict(self.inputs),
                    "output_activations": None,
                }
            },
            "ignore": ["lm_head"],
        }


VARIANTS = (
    Variant("W8A16", 8),
    Variant("W4A16-g32", 4, 32),
    Variant("W4A16-channel", 4),
    Variant("W3A16-g32", 3, 32),
    Variant("W2A16-g32", 2, 32),
    Variant("FP8_DYNAMIC", 8, format="float-quantized", inputs=_FP8_TOKEN),
    Variant("W8A8", 8, format="int-quantized", inputs=_INT8_TOKEN),
    Variant("MXFP4A16", 4, format="mxfp4-pack-quantized"),
    Variant("NVFP4A16", 4, format="nvfp4-pack-quantized"),
    Variant("NVFP4", 4, format="nvfp4-pack-quantized", inputs=_NVFP4_LOCAL),
    Variant("W4A16-g32-AWQ", 4, 32, format="awq"),
    Variant("W4A16-g32-GPTQ", 4, 32, format="gptq"),
    # Of DeepSeek's form; this model's matrices are too small for blocks of 128.
    Variant("FP8-block64", 8, 64, format="fp8"),
)


def quantize_folder(
    source: Path, target: Path, variant: Variant, calibration: str | None = None
) -> None:
    """Writes a copy of the model in `source` whose decoder linears are quantized to `target`; a kill
    leaves it without a config, which comes last. Raises RunFolderError.

    - `calibration`: the text of AWQ and GPTQ, None for the packaged one.
    """
    target.mkdir(parents=True, exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    calibrated = variant.format in ("awq", "gptq")
    inputs = inputs_of_linears(source, calibration) if calibrated else {}
    if variant.format == "awq":
        assert variant.group_size is not None
        scale_by_inputs(tensors, inputs, variant.group_size)
    wholes = _shared_global_scales(tensors) if "nvfp4" in variant.format else {}
    is_local = (variant.inputs or {}).get("dynamic") == "local"
    input_scales = _input_global_scales(source) if is_local else {}
    quantized: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            gram = inputs[module].gram if variant.format == "gptq" else None
            stored = dict(quantize_weight(tensor, variant, wholes.get(module), gram))
            if is_local:
                stored["input_global_scale"] = input_scales[module]
            quantized |= {f"{module}.{suffix}": value for suffix, value in stored.items()}
        else:
            quantized[name] = tensor
    save_file(quantized, target / "model.safetensors", metadata={"format": "pt"})
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, target / file.name)
    write_text(target / "config.json", config_text(source, variant))


def config_text(source: Path, variant: Variant) -> str:
    """The `config.json` of the model in `source`, quantized."""
    config = json.loads((source / "config.json").read_text())
    return json.dumps(config | {"quantization_config": variant.config()}, indent=2)


def quantize_weight(
    weight: torch.Tensor,
    variant: Variant,
    whole: torch.Tensor | None = None,
    gram: torch.Tensor | None = None,
) -> Mapping[str, torch.Tensor]:
    """The tensors of one linear [O, I] by suffix.

    - `whole`: NVFP4's global scale, if not its own; `gram`: its inputs' [I, I], which GPTQ needs.
    """
    size = variant.group_size
    if variant.format in _METHODS:
        assert size is not None
        if variant.format == "gptq":
            assert gram is not None
            return gptq(weight, gram, size)
        if variant.format == "awq":
            return rounding.qweight_by_output(weight, size)
        return rounding.float8_by_block(weight, size)
    if variant.format == "pack-quantized":
        return rounding.packed(weight, variant.bits, variant.group_size)
    if variant.format == "nvfp4-pack-quantized":
        return rounding.nvfp4(weight, whole)
    return {
        "int-quantized": rounding.int8_by_channel,
        "float-quantized": rounding.float8_by_channel,
        "mxfp4-pack-quantized": rounding.mxfp4,
    }[variant.format](weight)


def _shared_global_scales(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Module name → NVFP4's global scale: one for all that engines fuse, as llm-compressor has it.

    vLLM takes a single one for `qkv_proj` and for `gate_up_proj`; where they differ, it runs another
    model than the checkpoint's.
    """
    largest: dict[str, torch.Tensor] = {}
    modules = [n.removesuffix(".weight") for n in tensors if n.endswith("_proj.weight")]
    for module in modules:
        fused = whole_of(module) or module
        peak = tensors[f"{module}.weight"].float().abs().max()
        largest[fused] = torch.maximum(largest.get(fused, peak), peak)
    return {m: rounding.global_scale(largest[whole_of(m) or m]) for m in modules}


def _input_global_scales(source: Path) -> dict[str, torch.Tensor]:
    """Module name → global scale of its input, from the largest magnitude on random tokens."""
    size = json.loads((source / "config.json").read_text())["vocab_size"]
    ids = torch.randint(3, size, (4, 128), generator=torch.Generator().manual_seed(0))
    scales: dict[str, torch.Tensor] = {}
    observe(source, ids, lambda name, x: scales.update({name: rounding.global_scale(x)}))
    return scales
