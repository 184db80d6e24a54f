"""Checkpoints of bitsandbytes made by plain torch, and the dense ones of the same weights."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from support import family
from support.family import LINEAR, Case, Family, Input, Pair, Tensors, listed

from scoremode.schemes.bitsandbytes import TABLES, Modules


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


def weight_of(stored: Tensors, *_: Any) -> torch.Tensor:
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
    return dense.to(getattr(torch, fields["dtype"])).float()


def input_of(stored: Tensors, *_: Any) -> Input | None:
    return (8, "int", "token", True, True, None) if "SCB" in stored else None


def make_pair(
    folder: Path, name: str, kind: str, double: bool = False, *, linear: str | None = None
) -> Pair:
    """`linear`: finds the weights that are quantized, in place of the usual ones."""
    finds = re.compile(linear) if linear else LINEAR
    fields = config(kind, double)
    return family.make_pair(folder, name, lambda w: quantize(w, kind, double), fields, linear=finds)


def case(kind: str, double: bool, label: str, *models: str) -> Case:
    name, inputs = kind + " double" * double, None
    if kind == "int8":
        inputs = "int8 token, outliers from 6 apart"
    fields = config(kind, double)
    # The text of a number in the record has any length.
    loose = (f"weight.quant_state.bitsandbytes__{kind}",) if double else ()
    return Case(
        name, lambda w: quantize(w, kind, double), fields, label, inputs, models, loose=loose
    )


FAMILY = Family(
    Modules,
    config(),
    (
        case("nf4", False, "NF4 g64", "llama"),
        case("nf4", True, "NF4 g64 double", "qwen3_moe"),
        case("fp4", True, "FP4 g64 double", "llama"),
        case("int8", False, "LLM.int8", "llama"),
    ),
    spare=listed("llm_int8_skip_modules"),
    claims=True,
    weight=weight_of,
    input=input_of,
    not_decoded=(
        ({"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight True"),
        ({"bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
    ),
    not_understood=(
        ({"load_in_8bit": True}, "both of load_in_4bit and load_in_8bit"),
        ({"load_in_4bit": False, "_load_in_4bit": False}, "neither of load_in_4bit and"),
        ({"load_in_4bit": 1}, "load_in_4bit 1 is not true or false"),
        ({"llm_int8_threshold": -1.0}, "llm_int8_threshold -1.0 is not a number that is not neg"),
        ({"llm_int8_threshold": True}, "llm_int8_threshold True"),
        ({"llm_int8_threshold": float("nan")}, "llm_int8_threshold nan"),
        ({"bnb_4bit_quant_type": 4}, "bnb_4bit_quant_type 4 is not a string"),
        ({"llm_int8_skip_modules": "lm_head"}, "llm_int8_skip_modules 'lm_head' is not a list"),
        ({"llm_int8_skip_modules": ["("]}, "llm_int8_skip_modules: pattern"),
    ),
)
