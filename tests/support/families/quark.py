"""Checkpoints of AMD Quark made by plain torch, and the dense ones of the same weights."""

import re
from pathlib import Path
from typing import Any

import torch
from support.models import edit_config, edit_tensors, make_checkpoint

Tensors = dict[str, torch.Tensor]
LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")
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


def make_pair(folder: Path, name: str, kind: str, **others: Any) -> tuple[Path, Path]:
    """A random bfloat16 model, its linears quantized; and a dense one of what they stand for."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)

    def pack(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            stored = quantize(tensors.pop(key), kind)
            del stored["dense"]
            tensors |= {f"{key.removesuffix('weight')}{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            tensors[key] = quantize(tensors[key], kind)["dense"]

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=config(kind, **others))
    return packed, dense
