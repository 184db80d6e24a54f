"""Checkpoints of torchao made by plain torch, and the dense ones of the same weights."""

import json
from pathlib import Path
from typing import Any

import torch
from support import family
from support.family import Case, Config, Family, Input, Pair, Tensors, listed

from scoremode.schemes.torchao import Modules

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


def quantize(weight: torch.Tensor, kind: str) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight."""
    exact = weight.float()
    scale = exact.abs().amax(1, keepdim=True) / (127 if kind == "Int8" else 448)
    codes = exact / scale
    codes = codes.round().char() if kind == "Int8" else codes.to(torch.float8_e4m3fn)
    stored = {"_weight_qdata": codes, "_weight_scale": scale}
    if kind == "Int8":
        stored["_weight_zero_point"] = torch.zeros(scale.shape, dtype=torch.int8)
    return stored | {"dense": (codes.float() * scale).bfloat16()}


def described(weight: torch.Tensor, kind: str, dynamic: bool) -> str:
    """What the file says of a weight."""
    inputs = {"_type": f"QuantizeTensorTo{kind}Kwargs", "_data": {"granularity": ROW}}
    data = {"block_size": [1, weight.shape[1]], "dtype": DTYPE}
    data["act_quant_kwargs"] = inputs if dynamic else None
    return json.dumps({"_type": f"{kind}Tensor", "_data": data})


def weight_of(
    stored: Tensors, module: str, config: Config, metadata: dict[str, str]
) -> torch.Tensor:
    """As `dequantize_affine` and `_dequantize_affine_float8`: a scale for each run of columns."""
    codes, scale, data = (
        stored["_weight_qdata"].float(),
        stored["_weight_scale"],
        json.loads(metadata[f"{module}.weight"])["_data"],
    )
    height, width = data["block_size"]
    rows, columns = codes.shape
    assert rows % height == 0 and columns % width == 0
    assert scale.shape == (rows // height, columns // width)
    spread = scale.float().repeat_interleave(height, 0).repeat_interleave(width, 1)
    assert "_weight_zero_point" not in stored or not stored["_weight_zero_point"].any()
    return (codes * spread).to(getattr(torch, data["dtype"]["_data"])).float()


def input_of(
    stored: Tensors, module: str, config: Config, metadata: dict[str, str]
) -> Input | None:
    data = json.loads(metadata[f"{module}.weight"])["_data"]
    said = data.get("act_quant_kwargs")
    if data.get("activation_quantization") or not said:
        assert not data.get("activation_quantization")
        return None
    kind = "int" if "Int8" in said["_type"] else "float"
    by = {"PerRow": "token", "PerTensor": "tensor"}[said["_data"]["granularity"]["_type"]]
    return 8, kind, by, True, True, None


def make_pair(folder: Path, name: str, kind: str, dynamic: bool = False) -> Pair:
    return family.make_pair(
        folder,
        name,
        lambda w: quantize(w, kind),
        config(kind, dynamic),
        metadata=lambda w: described(w, kind, dynamic),
    )


def case(kind: str, dynamic: bool, label: str, model: str) -> Case:
    return Case(
        f"{kind}{' dynamic' * dynamic}",
        lambda w: quantize(w, kind),
        config(kind, dynamic),
        label,
        f"{kind.lower()} token" if dynamic else None,
        (model,),
        metadata=lambda w: described(w, kind, dynamic),
    )


FAMILY = Family(
    Modules,
    {"quant_method": "torchao"},
    (
        case("Int8", False, "W8A16 channel", "llama"),
        case("Int8", True, "W8A8 channel", "llama"),
        case("Float8", False, "FP8 W8A16 channel", "qwen3_moe"),
        case("Float8", True, "FP8 channel, inputs float8 token", "qwen3_moe"),
    ),
    spare=listed("modules_to_not_convert"),
    weight=weight_of,
    input=input_of,
    not_decoded=(
        ({"include_input_output_embeddings": True}, "include_input_output_embeddings True"),
    ),
    not_understood=(({"modules_to_not_convert": "a"}, "modules_to_not_convert 'a' is not a list"),),
)
