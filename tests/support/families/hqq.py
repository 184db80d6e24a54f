"""Checkpoints of HQQ made by plain torch, and the dense ones of the same weights."""

import re
from pathlib import Path
from typing import Any

import torch
from support.models import edit_config, edit_tensors, make_checkpoint

Tensors = dict[str, torch.Tensor]
LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")
# Codes in an element.
_COUNT = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}


def config(bits: int = 4, size: int = 32, axis: int = 1) -> dict[str, Any]:
    weight = {"nbits": bits, "group_size": size, "axis": axis, "channel_wise": True}
    weight |= {"optimize": True, "round_zero": True, "view_as_float": False}
    quant = {"weight_quant_params": weight, "scale_quant_params": None, "zero_quant_params": None}
    return {"quant_method": "hqq", "quant_config": quant, "skip_modules": ["lm_head"]}


def text(words: str) -> torch.Tensor:
    return torch.tensor(list(words.encode()), dtype=torch.uint8)


def quantize(weight: torch.Tensor, bits: int, size: int, axis: int) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight."""
    dtype = weight.dtype
    grid = weight.float().reshape((-1, size) if axis else (size, -1))
    low, high = grid.amin(axis, keepdim=True), grid.amax(axis, keepdim=True)
    top = (1 << bits) - 1
    scale = ((high - low) / top).clamp_min(1e-5).to(dtype)
    zero = (-low / scale.float()).to(dtype)
    q = (grid / scale.float() + zero.float()).round().clamp(0, top).int()
    dense = ((q.to(dtype) - zero) * scale).reshape(weight.shape)
    count = _COUNT[bits]
    step = -(-len(q) // count)
    padded = torch.nn.functional.pad(q, (0, 0, 0, step * count - len(q))).view(count, step, -1)
    packed = sum(padded[k] << (bits * (count - 1 - k)) for k in range(count))
    assert isinstance(packed, torch.Tensor)
    return {
        "W_q": packed.to(torch.int32 if bits == 3 else torch.uint8),
        "scale": scale,
        "zero": zero,
        "nbits": torch.tensor(bits, dtype=torch.int32),
        "group_size": torch.tensor(size, dtype=torch.int32),
        "axis": torch.tensor(axis, dtype=torch.int32),
        "shape": torch.tensor(weight.shape),
        "packing": text("3bit_32" if bits == 3 else f"{bits}bit_u8"),
        "unpack_view_dtype": text("torch.int32" if bits == 3 else "torch.uint8"),
        "compute_dtype": text(str(dtype)),
        "view_as_float": torch.tensor(0, dtype=torch.uint8),
        "quant_scale": torch.tensor(0, dtype=torch.uint8),
        "quant_zero": torch.tensor(0, dtype=torch.uint8),
        "channel_wise": torch.tensor(1, dtype=torch.uint8),
        "encoded_state_dict": torch.tensor(1, dtype=torch.uint8),
        "stores_quant_config": torch.tensor(1, dtype=torch.uint8),
        "offload_meta": torch.tensor(0, dtype=torch.uint8),
        "optimize": torch.tensor(1, dtype=torch.uint8),
        "round_zero": torch.tensor(bits == 4, dtype=torch.uint8),
        "dense": dense,
    }


def make_pair(folder: Path, name: str, bits: int, size: int, axis: int) -> tuple[Path, Path]:
    """A random bfloat16 model, its linears quantized; and a dense one of what they stand for."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)

    def pack(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            stored = quantize(tensors.pop(key), bits, size, axis)
            del stored["dense"]
            tensors |= {f"{key.removesuffix('weight')}{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            tensors[key] = quantize(tensors[key], bits, size, axis)["dense"]

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=config(bits, size, axis))
    return packed, dense
