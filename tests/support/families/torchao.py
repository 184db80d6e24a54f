"""Checkpoints of torchao made by plain torch, and the dense ones of the same weights."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.models import edit_config, edit_tensors, make_checkpoint

LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")
DTYPE = {"_type": "torch.dtype", "_data": "bfloat16"}
ROW = {"_type": "PerRow", "_data": {"dim": -1}}


def config(kind: str = "Int8", dynamic: bool = False, **others: Any) -> dict[str, Any]:
    """As transformers writes it, with fields of torchao's that decide."""
    name = f"{kind}DynamicActivation{kind}WeightConfig" if dynamic else f"{kind}WeightOnlyConfig"
    quant = {"_type": name, "_version": 2, "_data": {"granularity": ROW}}
    return {
        "quant_method": "torchao",
        "quant_type": {"default": quant},
        "modules_to_not_convert": None,
        "include_input_output_embeddings": False,
        "untie_embedding_weights": False,
    } | others


def make_pair(folder: Path, name: str, kind: str, dynamic: bool = False) -> tuple[Path, Path]:
    """A random bfloat16 model, its linears quantized; and a dense one of what they stand for."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)
    tensors, metadata = load_file(packed / "model.safetensors"), {"format": "pt"}
    weights = {}
    for key in [key for key in tensors if LINEAR.search(key)]:
        exact = tensors.pop(key).float()
        scale = exact.abs().amax(1, keepdim=True) / (127 if kind == "Int8" else 448)
        codes = exact / scale
        codes = codes.round().char() if kind == "Int8" else codes.to(torch.float8_e4m3fn)
        module = key.removesuffix(".weight")
        tensors[f"{module}._weight_qdata"], tensors[f"{module}._weight_scale"] = codes, scale
        if kind == "Int8":
            tensors[f"{module}._weight_zero_point"] = torch.zeros(scale.shape, dtype=torch.int8)
        inputs = {"_type": f"QuantizeTensorTo{kind}Kwargs", "_data": {"granularity": ROW}}
        data = {"block_size": [1, exact.shape[1]], "dtype": DTYPE}
        data["act_quant_kwargs"] = inputs if dynamic else None
        metadata[key] = json.dumps({"_type": f"{kind}Tensor", "_data": data})
        weights[key] = (codes.float() * scale).bfloat16()
    save_file(tensors, packed / "model.safetensors", metadata=metadata)
    edit_tensors(dense, lambda tensors: tensors.update(weights))
    edit_config(packed, quantization_config=config(kind, dynamic))
    return packed, dense
