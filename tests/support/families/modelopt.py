"""Linears as ModelOpt exports them, what they stand for by plain torch, and whole models of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support import family
from support.family import Case, Family, Pair, Tensors, listed
from support.models import edit_config

from scoremode.schemes.modelopt import Modules

E4M3 = torch.float8_e4m3fn
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def nvfp4(weight: torch.Tensor, *, inputs: bool = True) -> Tensors:
    exact = weight.float()
    whole = exact.abs().amax() / (6 * 448)
    groups = exact.unflatten(1, (-1, 16))
    scale = (groups.abs().amax(2) / (6 * whole)).clamp(2**-9, 448).to(E4M3)
    steps = (groups / (scale.float() * whole).unsqueeze(2)).flatten(1)
    codes = (steps.abs().unsqueeze(2) - E2M1).abs().argmin(2) + 8 * (steps < 0)
    stored = {
        "weight": (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8),
        "weight_scale": scale,
        "weight_scale_2": whole,
    }
    return stored | ({"input_scale": torch.tensor(0.0013)} if inputs else {})


def nvfp4_weight(stored: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """As `NVFP4QTensor.dequantize` computes it; tests/golden/modelopt holds its own answers."""
    packed = stored["weight"].long()
    codes = torch.stack((packed & 15, packed >> 4), 2).flatten(1)
    values = torch.cat((E2M1, -E2M1))[codes].unflatten(1, (-1, 16))
    scale = stored["weight_scale"].float() * stored["weight_scale_2"]
    return (values * scale.unsqueeze(2)).flatten(1).to(dtype)


def fp8(weight: torch.Tensor, *, by_row: bool = False) -> Tensors:
    exact = weight.float()
    scale = (exact.abs().amax(1) if by_row else exact.abs().amax()) / 448
    codes = (exact / (scale.unsqueeze(1) if by_row else scale)).to(E4M3)
    stored = {"weight": codes, "weight_scale": scale}
    return stored if by_row else stored | {"input_scale": torch.tensor(0.013)}


def fp8_weight(stored: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """As `FP8QTensor.dequantize`: the scale is rounded as well."""
    scale = stored["weight_scale"].to(dtype)
    return stored["weight"].to(dtype) * (scale.unsqueeze(1) if scale.dim() else scale)


def fp8_block(weight: torch.Tensor, size: int = 128) -> Tensors:
    """With the scales' shape that ModelOpt writes."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % size, 0, -rows % size))
    blocks = padded.unflatten(1, (-1, size)).unflatten(0, (-1, size))
    scale = blocks.abs().amax((1, 3), keepdim=True) / 448
    codes = (blocks / scale).flatten(2).flatten(0, 1)[:rows, :columns].to(E4M3)
    return {"weight": codes.contiguous(), "weight_scale": scale}


def fp8_block_weight(stored: Tensors, dtype: torch.dtype, size: int = 128) -> torch.Tensor:
    scale = stored["weight_scale"][:, 0, :, 0].to(dtype)
    spread = scale.repeat_interleave(size, 0).repeat_interleave(size, 1)
    rows, columns = stored["weight"].shape
    return stored["weight"].to(dtype) * spread[:rows, :columns]


def mxfp8(weight: torch.Tensor) -> Tensors:
    groups = weight.float().unflatten(1, (-1, 32))
    exponent = (groups.abs().amax(2) / 448).log2().ceil()
    codes = (groups / torch.exp2(exponent).unsqueeze(2)).flatten(1).to(E4M3)
    return {"weight": codes, "weight_scale": (exponent + 127).to(torch.uint8)}


def mxfp8_weight(stored: Tensors, dtype: torch.dtype) -> torch.Tensor:
    scale = torch.exp2(stored["weight_scale"].float() - 127)
    groups = stored["weight"].float().unflatten(1, (-1, 32))
    return (groups * scale.unsqueeze(2)).flatten(1).to(dtype)


def int4(weight: torch.Tensor, size: int = 128) -> Tensors:
    """Groups of `size` columns, or of all, if there are fewer."""
    groups = weight.float().unflatten(1, (-1, min(size, weight.shape[1])))
    scale = groups.abs().amax(2) / 7
    codes = (groups / scale.unsqueeze(2)).round().clamp(-8, 7).flatten(1).to(torch.uint8) & 15
    return {"weight": codes[0::2] | codes[1::2] << 4, "weight_scale": scale}


def int4_weight(stored: Tensors, dtype: torch.dtype, size: int = 128) -> torch.Tensor:
    packed = stored["weight"].int()
    codes = torch.stack((packed & 15, packed >> 4), 1).flatten(0, 1)
    spread = stored["weight_scale"].float().repeat_interleave(size, 1)[:, : codes.shape[1]]
    return ((codes - 16 * (codes > 7)) * spread).to(dtype)


def int4_float8(weight: torch.Tensor) -> Tensors:
    stored = int4(weight)
    whole = int4_weight(stored, torch.bfloat16).float().abs().amax() / 448
    return stored | {"weight_scale_2": whole, "input_scale": torch.tensor(0.013)}


def int4_float8_weight(stored: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """The integers as the library simulates them in bfloat16, rounded to float8."""
    whole = stored["weight_scale_2"]
    codes = (int4_weight(stored, torch.bfloat16).float() / whole).clamp(-448, 448).to(E4M3)
    return (codes.float() * whole).to(dtype)


@dataclass(frozen=True)
class Format:
    """How a weight becomes tensors, what they stand for, and columns that must be whole groups."""

    store: Callable[[torch.Tensor], Tensors]
    weight: Callable[[Tensors, torch.dtype], torch.Tensor]
    label: str
    columns: int = 1


FORMATS = {
    "NVFP4": Format(nvfp4, nvfp4_weight, "NVFP4", 16),
    "W4A16_NVFP4": Format(lambda w: nvfp4(w, inputs=False), nvfp4_weight, "NVFP4A16", 16),
    "FP8": Format(fp8, fp8_weight, "FP8"),
    "FP8_PER_CHANNEL_PER_TOKEN": Format(lambda w: fp8(w, by_row=True), fp8_weight, "FP8_DYNAMIC"),
    "FP8_PB_WO": Format(fp8_block, fp8_block_weight, "FP8 W8A16 block 128x128"),
    "MXFP8": Format(mxfp8, mxfp8_weight, "MXFP8", 32),
    "NVFP4_AWQ": Format(nvfp4, nvfp4_weight, "NVFP4 AWQ", 16),
    "W4A16_AWQ": Format(int4, int4_weight, "W4A16 AWQ g128"),
    "W4A8_AWQ": Format(int4_float8, int4_float8_weight, "W4AFP8 AWQ g128"),
}


def config(algorithm: str, *exclude: str, **fields: Any) -> dict[str, Any]:
    """The newer form, in config.json."""
    fixed = {"quant_method": "modelopt", "producer": {"name": "modelopt", "version": "0.47.0"}}
    fields = _group_size(algorithm) | fields
    return fixed | {"quant_algo": algorithm, "ignore": list(exclude)} | fields


def file(algorithm: str | None, *exclude: str, **fields: Any) -> dict[str, Any]:
    """The older form, in hf_quant_config.json."""
    inner = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": list(exclude)}
    inner |= _group_size(algorithm) | fields
    return {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": inner}


def _group_size(algorithm: str | None) -> dict[str, int]:
    """Said where it may be any, but in `quantized_layers`: else the tensors alone would tell it."""
    return {"group_size": 128} if algorithm in ("W4A16_AWQ", "W4A8_AWQ") else {}


def write_file(folder: Path, fields: dict[str, Any]) -> None:
    (folder / "hf_quant_config.json").write_text(json.dumps(fields))


def quantize(weight: torch.Tensor, algorithm: str) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight in bfloat16."""
    stored = FORMATS[algorithm].store(weight)
    return stored | {"dense": FORMATS[algorithm].weight(stored, torch.bfloat16)}


def make_pair(
    folder: Path, name: str, algorithm: str, *, alone: bool = False, **fields: Any
) -> Pair:
    """A random bfloat16 model, its linears quantized where they have whole groups; and a dense one of
    what they stand for. `alone`: with the older file, and config.json that says nothing."""

    def fits(weight: torch.Tensor) -> bool:
        return weight.shape[1] % FORMATS[algorithm].columns == 0

    pair = family.make_pair(folder, name, lambda w: quantize(w, algorithm), {}, fits=fits)
    weights = load_file(pair[0] / "model.safetensors")
    left = [n for n, w in weights.items() if "_proj" in n and w.dtype == torch.bfloat16]
    excluded = ["lm_head", *(name.removesuffix(".weight") for name in left)]
    said = None if alone else config(algorithm, *excluded, **fields)
    edit_config(pair[0], quantization_config=said)
    if alone:
        write_file(pair[0], file(algorithm, *excluded, **fields))
    return pair


_INPUTS = {
    **dict.fromkeys(("NVFP4", "NVFP4_AWQ"), "float4 group 16 local"),
    **dict.fromkeys(("FP8", "W4A8_AWQ"), "float8 tensor static"),
    "FP8_PER_CHANNEL_PER_TOKEN": "float8 token",
    "MXFP8": "float8 group 32 ue8m0",
}


def case(algorithm: str) -> Case:
    return Case(
        algorithm,
        lambda w: quantize(w, algorithm),
        config(algorithm, "lm_head"),
        FORMATS[algorithm].label,
        _INPUTS.get(algorithm),
        ("llama", "qwen3_moe", "deepseek_v3"),
        ("bfloat16",),
        shape=(256, 384),
    )


FAMILY = Family(
    Modules,
    config("FP8"),
    tuple(map(case, FORMATS)),
    pair=lambda folder, name, case: make_pair(folder, name, case.name),
    spare=listed("ignore"),
)
