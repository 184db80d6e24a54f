"""Checkpoints of MLX made by plain torch, and the dense ones of the same weights."""

import re
from pathlib import Path
from typing import Any

import torch
from models import edit_config, edit_tensors, make_checkpoint

Tensors = dict[str, torch.Tensor]
# Embeddings and heads too.
QUANTIZED = re.compile(r"(_proj|experts\.\d+\.\w+|embed_tokens|lm_head)\.weight$")


def quantize(weight: torch.Tensor, bits: int, size: int) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight."""
    dtype, (rows, columns) = weight.dtype, weight.shape
    groups = weight.float().view(rows, -1, size)
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / ((1 << bits) - 1)).clamp_min(1e-6).to(dtype)
    bias = low.to(dtype)
    q = (groups - bias.float()[..., None]) / scale.float()[..., None]
    q = q.round().clamp(0, (1 << bits) - 1)
    dense = (q.to(dtype) * scale[..., None] + bias[..., None]).view(rows, columns)
    stream = (q.int().view(rows, columns, 1) >> torch.arange(bits)) & 1
    words = (stream.view(rows, -1, 32).long() << torch.arange(32)).sum(2)
    return {
        "weight": words.to(torch.uint32),
        "scales": scale,
        "biases": bias,
        "dense": dense,
    }


def make_pair(
    folder: Path, name: str, bits: int = 4, size: int = 32, key: str = "quantization", **named: Any
) -> tuple[Path, Path]:
    """A random bfloat16 model, quantized, and a dense one of what it stands for; `named`: the last
    part of modules that have other bits."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)
    overrides: dict[str, Any] = {}

    def stored(tensors: Tensors, name: str) -> Tensors:
        module = name.removesuffix(".weight")
        other = named.get(module.rpartition(".")[2])
        if other is not None:
            overrides[module] = {"group_size": size, "bits": other}
        return quantize(tensors[name], other or bits, size)

    def pack(tensors: Tensors) -> None:
        for name in [name for name in tensors if QUANTIZED.search(name)]:
            made = stored(tensors, name)
            del tensors[name], made["dense"]
            tensors |= {f"{name.removesuffix('weight')}{s}": t for s, t in made.items()}

    def decode(tensors: Tensors) -> None:
        for name in [name for name in tensors if QUANTIZED.search(name)]:
            tensors[name] = stored(tensors, name)["dense"]

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, **{key: {"group_size": size, "bits": bits} | overrides})
    return packed, dense
