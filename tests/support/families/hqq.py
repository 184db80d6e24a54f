"""Checkpoints of HQQ made by plain torch, and the dense ones of the same weights."""

from pathlib import Path
from typing import Any

import torch
from support import family
from support.family import Case, Family, Pair, Tensors, listed

from scoremode.schemes.hqq import Modules

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


def weight_of(stored: Tensors, *_: Any) -> torch.Tensor:
    packing = bytes(stored["packing"].tolist()).decode()
    bits = int(packing[0])
    count = 10 if bits == 3 else 8 // bits
    packed = stored["W_q"]
    if packed.is_floating_point():
        packed = packed.view(torch.int32 if bits == 3 else torch.uint8)
    packed = packed.int()
    rows = [packed >> (bits * (count - 1 - k)) & ((1 << bits) - 1) for k in range(count)]
    zero, scale, size = stored["zero"], stored["scale"], int(stored["group_size"])
    shape = stored["shape"].tolist()
    height = shape[0] * shape[1] // size if int(stored["axis"]) else size
    q = torch.cat(rows)[:height].to(scale.dtype)
    return ((q - zero) * scale).reshape(shape).float()


def changed(where: str | None = None, **fields) -> dict:
    quant = config()["quant_config"]
    (quant[where] if where else quant).update(fields)
    return {"quant_config": quant}


def make_pair(folder: Path, name: str, bits: int, size: int, axis: int) -> Pair:
    fields = config(bits, size, axis)
    return family.make_pair(folder, name, lambda w: quantize(w, bits, size, axis), fields)


def case(bits: int, axis: int, *models: str) -> Case:
    label = f"HQQ {bits} bits g16{'' if axis else ' axis 0'}"
    name, fields = f"{bits} axis {axis}", config(bits, 16, axis)
    return Case(name, lambda w: quantize(w, bits, 16, axis), fields, label, models=models)


# In 3 bits, rows that are no whole number of those in a word.
MODELS = {
    (4, 1): ("llama",),
    (3, 0): ("llama", "qwen3_moe"),
    (2, 1): ("qwen3_moe",),
    (8, 0): ("llama",),
}
FAMILY = Family(
    Modules,
    config(),
    tuple(case(bits, axis, *MODELS.get((bits, axis), ())) for bits in _COUNT for axis in (0, 1)),
    spare=listed("skip_modules"),
    claims=True,
    weight=weight_of,
    not_decoded=(
        (changed(scale_quant_params={"nbits": 8}), "quant_config, scale_quant_params {'nbits': 8}"),
        (changed(zero_quant_params={"nbits": 8}), "quant_config, zero_quant_params {'nbits': 8}"),
        (changed("weight_quant_params", channel_wise=False), "channel_wise False"),
    ),
    not_understood=(
        (changed("weight_quant_params", nbits="4"), "nbits '4' is not a number"),
        (changed("weight_quant_params", group_size=1.5), "group_size 1.5 is not an integer"),
        (changed("weight_quant_params", axis=True), "axis True is not an integer"),
        ({"quant_config": 4}, "quant_config 4 is not an object"),
        ({"quant_config": {"self_attn.q_proj": 4}}, "self_attn.q_proj 4 is not an object"),
        ({"skip_modules": "lm_head"}, "skip_modules 'lm_head' is not a list of names"),
    ),
)
