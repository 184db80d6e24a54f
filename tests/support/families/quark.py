"""Checkpoints of AMD Quark made by plain torch, and the dense ones of the same weights."""

import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from support import family
from support.family import Case, Config, Family, Input, Pair, Tensors, listed

from scoremode.schemes.quark import Modules

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def spec(dtype: str, scheme: str, *, dynamic: bool = False, axis: int | None = None, **others: Any):
    fields = {"dtype": dtype, "qscheme": scheme, "is_dynamic": dynamic, "ch_axis": axis}
    fields |= {"group_size": None, "symmetric": True, "round_method": "half_even"}
    return fields | {"scale_type": "float", "observer_cls": "PerTensorMinMaxObserver"} | others


MX: dict[str, Any] = {"axis": -1, "group_size": 32, "scale_format": "e8m0"}
GROUP: dict[str, Any] = {"axis": 1, "group_size": 32}
# By kind: weight and input.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "fp8": (spec("fp8_e4m3", "per_tensor"), spec("fp8_e4m3", "per_tensor")),
    "ptpc": (
        spec("fp8_e4m3", "per_channel", axis=0),
        spec("fp8_e4m3", "per_channel", dynamic=True, axis=1),
    ),
    "int8": (
        spec("int8", "per_channel", axis=0),
        spec("int8", "per_channel", dynamic=True, axis=1),
    ),
    "mxfp4": (spec("fp4", "per_group", **MX), spec("fp4", "per_group", dynamic=True, **MX)),
    "mxfp4 weights": (spec("fp4", "per_group", **MX), None),
    "int4": (spec("int4", "per_group", **GROUP), None),
    "uint4": (spec("uint4", "per_group", **GROUP | {"symmetric": False}), None),
}


def config(kind: str, **others: Any) -> dict[str, Any]:
    weight, inputs = KINDS[kind]
    layer = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    export = {"kv_cache_group": [], "weight_format": "real_quantized", "pack_method": "reorder"}
    return {
        "quant_method": "quark",
        "global_quant_config": layer | {"target_device": None},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head"],
        "export": export,
        "algo_config": None,
        "softmax_quant_spec": None,
        "quant_mode": "eager_mode",
        "version": "0.11",
    } | others


def quantize(weight: torch.Tensor, kind: str) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight, in float32."""
    exact = weight.float()
    if kind.startswith("mxfp4"):
        groups = exact.view(len(exact), -1, 32)
        exponent = (groups.abs().amax(2) / 6).clamp_min(1e-30).log2().ceil()
        scale = torch.exp2(exponent).unsqueeze(2)
        codes = ((groups / scale).abs().unsqueeze(3) - E2M1).abs().argmin(3)
        dense = (E2M1[codes] * groups.sign() * scale).view(exact.shape)
        codes = (codes + 8 * (groups < 0)).view(exact.shape).to(torch.uint8)
        packed = codes[:, 0::2] | codes[:, 1::2] << 4
        return {"weight": packed, "weight_scale": (exponent + 127).to(torch.uint8), "dense": dense}
    if kind in ("int4", "uint4"):
        return _in_words(exact, signed=kind == "int4")
    if kind == "int8":
        scale = exact.abs().amax(1) / 127
        codes = (exact / scale[:, None]).round().to(torch.int8)
        zeros = torch.zeros(len(exact), dtype=torch.int8)
        made = {"weight": codes, "weight_scale": scale, "weight_zero_point": zeros}
        return made | {"dense": codes.float() * scale[:, None]}
    scale = exact.abs().amax(1) / 448 if kind == "ptpc" else exact.abs().max() / 448
    spread = scale[:, None] if kind == "ptpc" else scale
    codes = (exact / spread).to(torch.float8_e4m3fn)
    made = {"weight": codes, "weight_scale": scale, "dense": codes.float() * spread}
    return made if kind == "ptpc" else made | {"input_scale": torch.tensor(0.02)}


def _in_words(exact: torch.Tensor, *, signed: bool) -> Tensors:
    """Eight outputs to a word, 0 2 4 6 1 3 5 7 from its lowest bits on; transposed."""
    groups = exact.view(len(exact), -1, 32)
    if signed:
        scale, zero = groups.abs().amax(2) / 7, torch.zeros(groups.shape[:2])
    else:
        low = groups.amin(2).clamp_max(0)
        scale = (groups.amax(2).clamp_min(0) - low) / 15
        zero = (-low / scale).round()
    limits = (-8, 7) if signed else (0, 15)
    codes = ((groups / scale[:, :, None]).round() + zero[:, :, None]).clamp(*limits)
    dense = (codes - zero[:, :, None]) * scale[:, :, None]

    def words(values: torch.Tensor) -> torch.Tensor:
        by_eight = (values.T.long() & 15).unflatten(1, (-1, 8))[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return (by_eight << torch.arange(0, 32, 4)).sum(2).to(torch.uint32).view(torch.int32)

    return {
        "weight": words(codes.view(exact.shape)),
        "weight_scale": scale.T.contiguous(),
        "weight_zero_point": words(zero),
        "dense": dense.view(exact.shape),
    }


def _layer(module: str, config: dict[str, Any]) -> dict[str, Any]:
    layers = config.get("layer_quant_config") or {}
    if module in layers:
        return layers[module]
    found = (layer for name, layer in layers.items() if fnmatch.fnmatchcase(module, name))
    layer = next(found, config["global_quant_config"])
    return {"input_tensors": None} | (layer or {})


def weight_of(stored: Tensors, module: str, config: Config, *_: Any) -> torch.Tensor:
    weight, scale = stored["weight"], stored["weight_scale"]
    if weight.dtype == torch.int32:
        dtype = _layer(module, config)["weight"]["dtype"]
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


def input_of(stored: Tensors, module: str, config: Config, metadata: Any) -> Input | None:
    spec = _layer(module, config)["input_tensors"]
    if spec is None:
        return None
    kind, bits = {"fp8_e4m3": ("float", 8), "int8": ("int", 8), "fp4": ("float", 4)}[spec["dtype"]]
    by = {"per_tensor": "tensor", "per_channel": "token", "per_group": "group"}[spec["qscheme"]]
    size = spec["group_size"] if by == "group" else None
    return bits, kind, by, True, bool(spec.get("is_dynamic")), size


def of_weight(**fields) -> dict:
    return {"global_quant_config": {"weight": KINDS["ptpc"][0] | fields}}


def make_pair(folder: Path, name: str, kind: str, **others: Any) -> Pair:
    return family.make_pair(folder, name, lambda w: quantize(w, kind), config(kind, **others))


_LABELS = {
    "fp8": ("FP8", "float8 tensor static"),
    "ptpc": ("FP8_DYNAMIC", "float8 token"),
    "int8": ("W8A8 channel", "int8 token"),
    "mxfp4": ("MXFP4", "float4 group 32"),
    "mxfp4 weights": ("MXFP4A16", None),
    "int4": ("W4A16 g32", None),
    "uint4": ("W4A16 g32 asym", None),
}


def case(kind: str) -> Case:
    models = ("qwen3_moe" if kind == "int8" else "llama",)
    return Case(kind, lambda w: quantize(w, kind), config(kind), *_LABELS[kind], models)


FLOAT8, INT4 = spec("fp8_e4m3", "per_tensor"), KINDS["int4"][0]
FAMILY = Family(
    Modules,
    config("fp8"),
    tuple(case(kind) for kind in KINDS),
    spare=listed("exclude"),
    claims=True,
    weight=weight_of,
    input=input_of,
    not_decoded=(
        (of_weight(dtype="uint4"), "weight, symmetric True"),
        (of_weight(dtype="int3"), "weight, dtype 'int3'"),
        (of_weight(zero_point_type="float32"), "weight, zero_point_type 'float32'"),
        ({"export": {"pack_method": "other"}}, "pack_method 'other'"),
        ({"global_quant_config": {"input_tensors": INT4}}, "input_tensors, dtype 'int4'"),
        (of_weight(ch_axis=1), "weight, ch_axis 1"),
        (of_weight(symmetric=False), "weight, symmetric False"),
        (of_weight(scale_format="e5m3"), "weight, scale_format 'e5m3'"),
        (of_weight(dtype="fp4", qscheme="per_group", ch_axis=-1), "ch_axis -1 and group_size None"),
        ({"layer_type_quant_config": {"Embedding": {}}}, "layer_type_quant_config {"),
        ({"softmax_quant_spec": {"dtype": "fp8_e4m3"}}, "softmax_quant_spec {"),
        ({"export": {"weight_format": "fake_quantized"}}, "weight_format 'fake_quantized'"),
        ({"global_quant_config": {"weight": [FLOAT8] * 2}}, "global_quant_config, weight [{"),
        (
            {"global_quant_config": {"output_tensors": FLOAT8}},
            "global_quant_config, output_tensors 'float8 tensor static'",
        ),
        ({"global_quant_config": {"bias": {"dtype": "int8"}}}, "bias {'dtype': 'int8'}"),
        ({"export": None}, "out export (Quark before 1.0)"),
    ),
    not_understood=(
        (of_weight(ch_axis="0"), "ch_axis '0' is not an integer"),
        (of_weight(is_dynamic=True), "weights with dynamic scales"),
        (of_weight(is_dynamic=1), "is_dynamic 1 is not true or false"),
        ({"exclude": "lm_head"}, "exclude 'lm_head' is not a list of names"),
        ({"layer_quant_config": {"a": 4}}, "layer_quant_config, a 4 is not an object"),
        ({"layer_quant_config": True}, "layer_quant_config True is not an object"),
        ({"kv_cache_quant_config": [1]}, "kv_cache_quant_config [1] is not an object"),
        ({"global_quant_config": []}, "global_quant_config [] is not an object"),
        *(
            (of_weight(qscheme="per_block", block_size=size), "is not rows and columns")
            for size in (None, [128], [0, 128], "128x128")
        ),
    ),
)
