"""Checkpoints of gpt-oss with MXFP4 experts, and the dense ones of the same weights."""

import re
from pathlib import Path

import torch
from support.family import Family
from support.models import edit_config, edit_tensors, make_checkpoint
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from scoremode.schemes.mxfp4 import Modules

Tensors = dict[str, torch.Tensor]
PROJECTION = re.compile(r"\.experts\.(gate_up|down)_proj$")
# As published.
CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def random_blocks(
    experts: int, rows: int, columns: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Any codes, under scales from 2^-7 to 2^-3."""
    draw = torch.Generator().manual_seed(seed)
    groups = columns // 32
    blocks = torch.randint(0, 256, (experts, rows, groups, 16), generator=draw)
    scales = torch.randint(120, 125, (experts, rows, groups), generator=draw)
    return blocks.to(torch.uint8), scales.to(torch.uint8)


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    """float32 `x` [n, I] rounded to e4m3 in groups of 32 under the next power of two above a group's
    largest magnitude / 448."""
    grouped = x.double().unflatten(-1, (-1, 32))
    largest = grouped.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    scale = torch.exp2(torch.ceil(torch.log2(largest / 448)))
    codes = (grouped / scale).float().to(torch.float8_e4m3fn)
    return (codes.double() * scale).flatten(-2).float()


def make_pair(folder: Path) -> tuple[Path, Path]:
    """A random bfloat16 model with MXFP4 experts, and the dense one that the library makes of it."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, "gpt_oss", dtype=torch.bfloat16)

    def stored_of(name: str, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        experts, columns, rows = parameter.shape
        return random_blocks(experts, rows, columns, seed=sum(name.encode()))

    def pack(tensors: Tensors) -> None:
        for name in [name for name in tensors if PROJECTION.search(name)]:
            blocks, scales = stored_of(name, tensors.pop(name))
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}

    def decode(tensors: Tensors) -> None:
        for name in [name for name in tensors if PROJECTION.search(name)]:
            weight = convert_moe_packed_tensors(*stored_of(name, tensors[name]))
            assert weight.shape == tensors[name].shape and weight.dtype == torch.bfloat16
            tensors[name] = weight.contiguous()

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=CONFIG)
    return packed, dense


FAMILY = Family(
    Modules,
    {"quant_method": "mxfp4"},
    not_decoded=(
        ({"dequantize": True}, "dequantize True"),
        ({"config_groups": {"g": {}}}, "config_groups {'g': {}}"),
        ({"global_quant_config": {"weight": 1}}, "global_quant_config {'weight': 1}"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme {'num_bits': 8}"),
        ({"activation_scheme": "static"}, "activation_scheme 'static'"),
    ),
    not_understood=tuple(
        [
            ({"modules_to_not_convert": value}, "modules_to_not_convert")
            for value in ("lm_head", [1], {}, ["("])
        ]
    ),
)
