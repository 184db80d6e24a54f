"""Checkpoints of bitsandbytes made by plain torch, and the dense ones of the same weights."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from support.models import edit_config, edit_tensors, make_checkpoint

from scoremode.schemes.bitsandbytes import TABLES

Tensors = dict[str, torch.Tensor]
LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")


def config(kind: str = "nf4", double: bool = False, **others: Any) -> dict[str, Any]:
    """As transformers writes it."""
    four = kind != "int8"
    return {
        "quant_method": "bitsandbytes",
        "_load_in_4bit": four,
        "_load_in_8bit": not four,
        "load_in_4bit": four,
        "load_in_8bit": not four,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": kind if four else "fp4",
        "bnb_4bit_use_double_quant": double,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0,
    } | others


def state(of: str, original: torch.dtype, size: tuple[int, ...], **others: Any) -> torch.Tensor:
    """The record beside a weight, with `others` for its own fields."""
    fields: dict[str, Any] = {
        "quant_type": of,
        "blocksize": 64,
        "dtype": str(original).removeprefix("torch."),
        "shape": list(size),
    } | others
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def quantize(weight: torch.Tensor, kind: str, double: bool) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight, as exact as it is."""
    if kind == "int8":
        exact = weight.float()
        largest = exact.abs().amax(1)
        codes = (exact * (127 / largest.clamp_min(1e-30)).unsqueeze(1)).round().to(torch.int8)
        dense = codes.float() * largest.unsqueeze(1) * 7.874015718698502e-3
        order = torch.tensor(0, dtype=torch.uint8)
        return {"weight": codes, "SCB": largest, "weight_format": order, "dense": dense}
    table = TABLES[kind]
    flat = weight.float().flatten()
    count = len(flat)
    blocks = torch.nn.functional.pad(flat, (0, -count % 64)).view(-1, 64)
    absmax = blocks.abs().amax(1)
    stored: Tensors = {"weight.quant_map": table.clone()}
    more: dict[str, Any] = {}
    if double:
        offset = absmax.mean().item()
        outer = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
        largest = outer.abs().amax(1)
        values = torch.linspace(-1, 1, 256)
        codes = (outer / largest[:, None]).sub(values[:, None, None]).abs().argmin(0)
        stored["weight.absmax"] = codes.flatten()[: len(absmax)].to(torch.uint8)
        stored["weight.nested_absmax"], stored["weight.nested_quant_map"] = largest, values
        more = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        absmax = ((values[codes] * largest[:, None]).flatten() + offset)[: len(absmax)]
    else:
        stored["weight.absmax"] = absmax
    scaled = blocks / absmax.clamp_min(1e-30).unsqueeze(1)
    codes = scaled.flatten()[:count].unsqueeze(1).sub(table).abs().argmin(1)
    spread = absmax.repeat_interleave(64)[:count]
    dense = (table[codes] * spread).view(weight.shape).to(weight.dtype)
    codes = torch.nn.functional.pad(codes, (0, count % 2)).to(torch.uint8)
    stored["weight"] = (codes[0::2] << 4 | codes[1::2]).unsqueeze(1)
    stored[f"weight.quant_state.bitsandbytes__{kind}"] = state(
        kind, weight.dtype, tuple(weight.shape), **more
    )
    return stored | {"dense": dense}


def make_pair(
    folder: Path, name: str, kind: str, double: bool = False, *, linear: str | None = None
) -> tuple[Path, Path]:
    """A random bfloat16 model, its linears quantized, or the weights that `linear` finds; and a dense
    one of what they stand for."""
    found = re.compile(linear) if linear else LINEAR
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)

    def pack(tensors: Tensors) -> None:
        for key in [key for key in tensors if found.search(key)]:
            stored = quantize(tensors.pop(key), kind, double)
            del stored["dense"]
            tensors |= {f"{key.removesuffix('weight')}{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in [key for key in tensors if found.search(key)]:
            tensors[key] = quantize(tensors[key], kind, double)["dense"]

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=config(kind, double))
    return packed, dense
