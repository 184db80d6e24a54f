"""What a module of another library than compressed-tensors is, without scoremode: by plain torch, a
value at a time where that is easy to read."""

import fnmatch
import json
from collections.abc import Iterable
from typing import Any

import torch
from fuzz import words
from support.families import exl3 as exl3_models
from support.families.quark import E2M1

Tensors = dict[str, torch.Tensor]
# Bits, type, strategy, symmetric, dynamic and columns of a group of an input.
Input = tuple[int, str, str, bool, bool, int | None]
_NAMES = {"awq_marlin": "awq", "gptq_marlin": "gptq", "auto_round": "auto-round"}
_NAMES |= {"intel/auto-round": "auto-round"}
METHODS = {"bitsandbytes", "exl3", "hqq", "mlx", "quark", "awq", "gptq", "auto-round", "torchao"}
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Fields that tell a config without a method, in this order.
_FIELDS = {
    "quant_algo": None,
    "quantization": None,
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "_load_in_4bit": "bitsandbytes",
    "_load_in_8bit": "bitsandbytes",
    "zero_point": "awq",
    "desc_act": "gptq",
}


def method_of(config: Any) -> str | None:
    """Which of these wrote the config, None for any other."""
    if not isinstance(config, dict):
        return None
    method = config.get("quant_method")
    if method is None and "config_groups" not in config:
        mlx = "mlx" if {"bits", "group_size"} <= set(config) else None
        return next((_FIELDS[name] for name in _FIELDS if name in config), mlx)
    method = str(method).lower()
    method = _NAMES.get(method, method)
    return method if method in METHODS else None


def weight_of(
    method: str, stored: Tensors, module: str, config: dict[str, Any], metadata: dict[str, str]
) -> torch.Tensor:
    """float32 [O, I]; `stored` has the module's tensors by what follows its name, `metadata` what
    files have beside tensors."""
    if method == "bitsandbytes":
        return _bitsandbytes(stored)
    if method == "exl3":
        return exl3_models.dense(stored)
    if method == "hqq":
        return _hqq(stored)
    if method == "mlx":
        return _mlx(stored, _mlx_fields(module, config))
    if method == "quark":
        return _quark(stored, module, config)
    if method == "torchao":
        return _torchao(stored, json.loads(metadata[f"{module}.weight"]))
    return words.weight(method, stored, module, config)


def input_of(
    method: str, stored: Tensors, module: str, config: dict[str, Any], metadata: dict[str, str]
) -> Input | None:
    """How the module's input is declared to be quantized, None if it isn't."""
    if method == "bitsandbytes":
        return (8, "int", "token", True, True, None) if "SCB" in stored else None
    if method == "torchao":
        data = json.loads(metadata[f"{module}.weight"])["_data"]
        said = data.get("act_quant_kwargs")
        if data.get("activation_quantization") or not said:
            assert not data.get("activation_quantization")
            return None
        kind = "int" if "Int8" in said["_type"] else "float"
        by = {"PerRow": "token", "PerTensor": "tensor"}[said["_data"]["granularity"]["_type"]]
        return 8, kind, by, True, True, None
    if method != "quark":
        return None
    spec = _quark_layer(module, config)["input_tensors"]
    if spec is None:
        return None
    kind, bits = {"fp8_e4m3": ("float", 8), "int8": ("int", 8), "fp4": ("float", 4)}[spec["dtype"]]
    by = {"per_tensor": "tensor", "per_channel": "token", "per_group": "group"}[spec["qscheme"]]
    size = spec["group_size"] if by == "group" else None
    return bits, kind, by, True, bool(spec.get("is_dynamic")), size


def _quark_layer(module: str, config: dict[str, Any]) -> dict[str, Any]:
    layers = config.get("layer_quant_config") or {}
    if module in layers:
        return layers[module]
    found = (layer for name, layer in layers.items() if fnmatch.fnmatchcase(module, name))
    layer = next(found, config["global_quant_config"])
    return {"input_tensors": None} | (layer or {})


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


def _mlx_fields(module: str, config: dict[str, Any]) -> dict[str, Any]:
    """The module's own, where it has some, in place of those of all."""
    own = config.get(module)
    fields = own if isinstance(own, dict) else config
    assert own is not False and own != {}, "not to be quantized"
    return {name: fields.get(name) for name in ("mode", "bits", "group_size")}


def _mlx(stored: Tensors, fields: dict[str, Any]) -> torch.Tensor:
    usual = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}.get(fields["mode"], (4, 64))
    bits, size = fields["bits"] or usual[0], fields["group_size"] or usual[1]
    words = stored["weight"].view(torch.int32).long() & 0xFFFFFFFF
    stream = (words.unsqueeze(2) >> torch.arange(32)) & 1
    codes = (stream.flatten(1).unflatten(1, (-1, bits)) << torch.arange(bits)).sum(2)
    codes, scale = codes.unflatten(1, (-1, size)), stored["scales"]
    if fields["mode"] in (None, "", "affine"):
        bias = stored["biases"]
        return (codes.to(scale.dtype) * scale.unsqueeze(2) + bias.unsqueeze(2)).flatten(1).float()
    if bits == 8:
        values = codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
    else:
        values = torch.cat((E2M1, -E2M1))[codes]
    if size == 16:
        power = scale.view(torch.float8_e4m3fn).float()
    else:
        power = torch.ldexp(torch.ones(scale.shape), scale.int() - 127)
        power[scale == 255] = torch.inf
    return (values * power.unsqueeze(2)).flatten(1).bfloat16().float()


def _quark(stored: Tensors, module: str, config: dict[str, Any]) -> torch.Tensor:
    weight, scale = stored["weight"], stored["weight_scale"]
    if weight.dtype == torch.int32:
        dtype = _quark_layer(module, config)["weight"]["dtype"]
        shuffled = config["export"].get("pack_method") != "order"
        places = (0, 2, 4, 6, 1, 3, 5, 7) if shuffled else range(8)
        size = len(weight) // len(scale)
        # Those of symmetric weights need not be stored.
        packed = stored.get("weight_zero_point", torch.zeros_like(weight[::size]))
        codes, zeros = (_outputs(t, places, dtype) for t in (weight, packed))
        differences = codes - zeros.repeat_interleave(size, dim=0)
        return (differences * scale.float().repeat_interleave(size, dim=0)).T.contiguous()
    if weight.dtype == torch.uint8:
        codes = torch.stack((weight & 15, weight >> 4), 2).flatten(1).long()
        values = torch.cat((E2M1, -E2M1))[codes]
        power = torch.ldexp(torch.ones(scale.shape), scale.int() - 127)
        # An all-ones exponent is no number.
        power[scale.view(torch.uint8) == 255] = torch.inf
        # Its quantizer pads a last group that is short.
        spread = power.repeat_interleave(32, 1)[:, : values.shape[1]]
        return (values * spread).bfloat16().float()
    scale = scale.float()
    return weight.float() * (scale.view(-1, 1) if scale.numel() > 1 else scale.reshape(1, 1))


def _outputs(words: torch.Tensor, places: Iterable[int], dtype: str) -> torch.Tensor:
    """float32 [n, outputs] of [n, words]: the k-th code of a word is that of output `places[k]`."""
    values = torch.empty(len(words), words.shape[1], 8)
    for k, place in enumerate(places):
        code = words >> 4 * k & 15
        values[:, :, place] = (code - 16 * (code > 7) if dtype == "int4" else code).float()
    return values.flatten(1)


def _torchao(stored: Tensors, about: dict[str, Any]) -> torch.Tensor:
    """As `dequantize_affine` and `_dequantize_affine_float8`: a scale for each run of columns."""
    codes, scale, data = stored["_weight_qdata"].float(), stored["_weight_scale"], about["_data"]
    height, width = data["block_size"]
    rows, columns = codes.shape
    assert rows % height == 0 and columns % width == 0
    assert scale.shape == (rows // height, columns // width)
    spread = scale.float().repeat_interleave(height, 0).repeat_interleave(width, 1)
    assert "_weight_zero_point" not in stored or not stored["_weight_zero_point"].any()
    return (codes * spread).to(_DTYPES[data["dtype"]["_data"]]).float()
