"""Checkpoints in blocks of float8 (`quant_method: fp8`), and the dense ones of the same weights."""

import re
from pathlib import Path
from typing import Any, cast

import torch
from support.models import edit_config, edit_tensors, make_checkpoint
from torch.nn import functional
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

Tensors = dict[str, torch.Tensor]
LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")
E4M3 = torch.float8_e4m3fn


def config(block: tuple[int, int] = (128, 128), **others: Any) -> dict[str, Any]:
    fields = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return fields | {"weight_block_size": list(block)} | others


def spread(scale: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """Each element's own scale."""
    rows = scale.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]


def quantize(
    weight: torch.Tensor, block: tuple[int, int], scale_dtype: torch.dtype = torch.float32
) -> Tensors:
    """A scale a block from its largest magnitude, that of a short one too."""
    rows, columns = weight.shape
    exact = functional.pad(weight.float(), (0, -columns % block[1], 0, -rows % block[0]))
    blocks = exact.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0]))
    scale = blocks.abs().amax((1, 3)) / 448
    if scale_dtype in (torch.uint8, torch.float8_e8m0fnu):
        scale = torch.exp2(scale.log2().ceil())
    else:
        scale = scale.to(scale_dtype).float()
    codes = (weight.float() / spread(scale, block, weight.shape)).clamp(-448, 448).to(E4M3)
    if scale_dtype == torch.uint8:
        return {"weight": codes, "weight_scale_inv": scale.log2().add(127).to(torch.uint8)}
    return {"weight": codes, "weight_scale_inv": scale.to(scale_dtype)}


def dequantize(stored: Tensors, block: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    scale = stored["weight_scale_inv"]
    exact = scale.float()
    if scale.dtype == torch.uint8:
        exact = torch.exp2(exact - 127)
    weight = stored["weight"]
    return (weight.float() * spread(exact, block, weight.shape)).to(dtype)


def transformers_weight(stored: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """The library's dense weight, of a linear or of all experts."""
    operation = Fp8Dequantize(cast(Any, None))
    return operation._dequantize_one(stored["weight"], stored["weight_scale_inv"], dtype)


def make_pair(
    folder: Path,
    name: str,
    block: tuple[int, int],
    scale_dtype: torch.dtype = torch.float32,
    **others: Any,
) -> tuple[Path, Path]:
    """A random bfloat16 model, its linears in blocks; and a dense one of what they stand for."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)

    def pack(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            stored = quantize(tensors.pop(key), block, scale_dtype)
            tensors |= {f"{key.removesuffix('weight')}{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            stored = quantize(tensors[key], block, scale_dtype)
            tensors[key] = dequantize(stored, block, torch.bfloat16)

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=config(block, **others))
    return packed, dense
