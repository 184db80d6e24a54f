"""Makes quantized variants of a dense checkpoint: plain round-to-nearest, pack-quantized.

Not a way to quantize models well (llm-compressor is): no calibration, nothing but the nearest
integer. It exists so that the demo and the tests have real checkpoints in the format people publish,
without that library. Scales and packing follow compressed-tensors and are tested against it.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

__all__ = ["VARIANTS", "Variant", "quantize_folder"]


@dataclass(frozen=True)
class Variant:
    """Symmetric integers of 4 or 8 bits, one scale per `group_size` inputs or per channel."""

    name: str
    bits: int
    group_size: int | None

    def config(self) -> dict[str, Any]:
        """The `quantization_config` that says so."""
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": self.bits,
                        "type": "int",
                        "symmetric": True,
                        "strategy": "group" if self.group_size else "channel",
                        "group_size": self.group_size,
                    },
                    "input_activations": None,
                    "output_activations": None,
                }
            },
            "ignore": ["lm_head"],
        }


VARIANTS = (
    Variant("W8A16", 8, None),
    Variant("W4A16-g32", 4, 32),
    Variant("W4A16-channel", 4, None),
)


def quantize_folder(source: Path, target: Path, variant: Variant) -> None:
    """Writes a copy of the model in `source` whose decoder linears are quantized to `target`."""
    target.mkdir(parents=True)
    tensors = load_file(source / "model.safetensors")
    quantized: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            packed = quantize_weight(tensor, variant)
            quantized |= {f"{module}.{suffix}": value for suffix, value in packed.items()}
        else:
            quantized[name] = tensor
    save_file(quantized, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = variant.config()
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, target / file.name)


def quantize_weight(weight: torch.Tensor, variant: Variant) -> Mapping[str, torch.Tensor]:
    """The tensors of one linear [O, I]: `weight_packed`, `weight_scale`, `weight_shape`.

    The scale spans the largest magnitude with the integers' whole range, -2^(b-1) … 2^(b-1) - 1.
    """
    rows, columns = weight.shape
    size = variant.group_size or columns
    grouped = weight.float().unflatten(1, (-1, size))
    half_range = (2**variant.bits - 1) / 2
    scale = (grouped.abs().amax(2) / half_range).to(weight.dtype)
    low, high = -(2 ** (variant.bits - 1)), 2 ** (variant.bits - 1) - 1
    q = (grouped / scale.float().unsqueeze(2)).round().clamp(low, high).flatten(1)
    return {
        "weight_packed": _pack(q.to(torch.int64) - low, variant.bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, columns]),
    }


def _pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [O, ceil(I · bits / 32)] of unsigned values [O, I], lowest bits first."""
    per_word = 32 // bits
    padding = -values.shape[1] % per_word
    words = torch.nn.functional.pad(values, (0, padding)).unflatten(1, (-1, per_word))
    packed = (words << (torch.arange(per_word) * bits)).sum(2)
    # As two's complement: the top bit of a word is its sign.
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
