"""What a module of bitsandbytes, EXL3, HQQ, MLX or Quark is, without scoremode: by plain torch, a value
at a time where that is easy to read."""

import json
from collections.abc import Iterable
from typing import Any

import exl3_models
import torch
from quark_models import E2M1

Tensors = dict[str, torch.Tensor]
METHODS = {"bitsandbytes", "exl3", "hqq", "mlx", "quark"}
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def method_of(config: Any) -> str | None:
    """Which of these wrote the config, None for any other."""
    if not isinstance(config, dict):
        return None
    method = str(config.get("quant_method") or "").lower()
    if not method and "config_groups" not in config:
        if {"load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit"} & set(config):
            return "bitsandbytes"
        return "mlx" if {"bits", "group_size"} <= set(config) else None
    return method if method in METHODS else None


def weight_of(method: str, stored: Tensors, module: str, config: dict[str, Any]) -> torch.Tensor:
    """float32 [O, I]; `stored` has the module's tensors by what follows its name."""
    if method == "bitsandbytes":
        return _bitsandbytes(stored)
    if method == "exl3":
        return exl3_models.dense(stored)
    if method == "hqq":
        return _hqq(stored)
    if method == "mlx":
        return _mlx(stored, config | (config.get(module) or {}))
    return _quark(stored, config)


def _bitsandbytes(stored: Tensors) -> torch.Tensor:
    if "SCB" in stored:
        return stored["weight"].float() * stored["SCB"].view(-1, 1) * 7.874015718698502e-3
    (state,) = (t for name, t in stored.items() if "quant_state" in name)
    fields = json.loads(bytes(state.tolist()))
    count = fields["shape"][0] * fields["shape"][1]
    absmax = stored["weight.absmax"]
    if "nested_offset" in fields:
        outer = stored["weight.nested_absmax"].repeat_interleave(256)[: len(absmax)]
        absmax = stored["weight.nested_quant_map"][absmax.int()] * outer
        absmax = absmax + torch.tensor(fields["nested_offset"])
    packed = stored["weight"].view(torch.uint8).flatten().int()
    codes = torch.stack((packed >> 4, packed & 15), 1).flatten()[:count]
    spread = absmax.repeat_interleave(fields["blocksize"])[:count]
    dense = (stored["weight.quant_map"][codes] * spread).view(fields["shape"])
    return dense.to(_DTYPES[fields["dtype"]]).float()


def _hqq(stored: Tensors) -> torch.Tensor:
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


def _mlx(stored: Tensors, config: dict[str, Any]) -> torch.Tensor:
    bits, size = config.get("bits") or 4, config.get("group_size") or 64
    scale, bias = stored["scales"], stored["biases"]
    words = stored["weight"].view(torch.int32).long() & 0xFFFFFFFF
    stream = (words.unsqueeze(2) >> torch.arange(32)) & 1
    codes = (stream.flatten(1).unflatten(1, (-1, bits)) << torch.arange(bits)).sum(2)
    q = codes.unflatten(1, (-1, size)).to(scale.dtype)
    return (q * scale.unsqueeze(2) + bias.unsqueeze(2)).flatten(1).float()


def _quark(stored: Tensors, config: dict[str, Any]) -> torch.Tensor:
    weight, scale = stored["weight"], stored["weight_scale"]
    if weight.dtype == torch.int32:
        dtype = config["global_quant_config"]["weight"]["dtype"]
        shuffled = config["export"].get("pack_method") != "order"
        places = (0, 2, 4, 6, 1, 3, 5, 7) if shuffled else range(8)
        codes, zeros = (_outputs(t, places, dtype) for t in (weight, stored["weight_zero_point"]))
        size = len(weight) // len(scale)
        differences = codes - zeros.repeat_interleave(size, dim=0)
        return (differences * scale.float().repeat_interleave(size, dim=0)).T.contiguous()
    if weight.dtype == torch.uint8:
        codes = torch.stack((weight & 15, weight >> 4), 2).flatten(1).long()
        values = torch.cat((E2M1, -E2M1))[codes]
        power = torch.ldexp(torch.ones(scale.shape), scale.int() - 127)
        # An all-ones exponent is no number.
        power[scale.view(torch.uint8) == 255] = torch.inf
        return (values.unflatten(1, (-1, 32)) * power.unsqueeze(2)).flatten(1).bfloat16().float()
    scale = scale.float()
    return weight.float() * (scale.view(-1, 1) if scale.numel() > 1 else scale.reshape(1, 1))


def _outputs(words: torch.Tensor, places: Iterable[int], dtype: str) -> torch.Tensor:
    """float32 [n, outputs] of [n, words]: the k-th code of a word is that of output `places[k]`."""
    values = torch.empty(len(words), words.shape[1], 8)
    for k, place in enumerate(places):
        code = words >> 4 * k & 15
        values[:, :, place] = (code - 16 * (code > 7) if dtype == "int4" else code).float()
    return values.flatten(1)
