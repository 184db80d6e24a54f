"""Small valid checkpoints to mutate: every format, and every way of storing that readers get wrong.

Each is a dict of file names to bytes.
"""

import json
from typing import Any

import torch
from fuzz.files import INDEX, Files, join, split
from fuzz.library_bases import library_bases
from fuzz.tiny import COLUMNS, QUANTIZED, ROWS, checkpoint, plain
from support.families.float8_blocks import config, quantize
from support.quantized import PRESETS, LibraryLinear, preset


def make_bases() -> dict[str, Files]:
    """Always the same ones."""
    torch.manual_seed(0)
    bases = {name: _of_preset(name) for name in PRESETS}
    bases["dense"] = checkpoint(plain(), None)
    for bits in (3, 5, 6, 7):
        bases[f"padded {bits}"] = _packed(bits, "0.9.4", dense=False)
        bases[f"asymmetric {bits}"] = _packed(bits, "0.20.0", dense=True, zero_point=True)
    bases["padded asymmetric"] = _packed(3, "0.9.4", dense=False, zero_point=True)
    bases["g_idx"] = _packed(4, "0.9.4", dense=True, g_idx=True)
    bases["channel"] = _packed(4, "0.20.0", dense=True, size=None)
    bases["sharded"] = _sharded(bases["W4A16"])
    bases["nested"] = _nested(bases["FP8_DYNAMIC"])
    bases["mixed"] = _mixed()
    bases["float8 blocks"] = _blocks(torch.float32)
    bases["float8 blocks ue8m0"] = _blocks(torch.uint8, scale_fmt="ue8m0")
    bases["float8 experts as one"] = _float8_experts((8, 64))
    bases["float8 experts without blocks"] = _float8_experts(None, activation_scheme="static")
    bases["float8 tensor"] = _one_scale()
    bases["fp4 experts"] = _fp4()
    bases["gpt-oss"] = _gpt_oss()
    return bases | library_bases()


def _linear(name: str) -> LibraryLinear:
    weight = torch.randn(ROWS, COLUMNS).bfloat16()
    return LibraryLinear(weight, preset(name), torch.randn(8, COLUMNS))


def _of_preset(name: str) -> Files:
    tensors = plain()
    for module in QUANTIZED:
        linear = _linear(name)
        tensors |= {f"{module}.{k}": v for k, v in linear.stored().items()}
    return checkpoint(tensors, linear.config())


def _blocks(scale: torch.dtype, **others: Any) -> Files:
    """Short last blocks on both sides."""
    block, tensors = (4, 96), plain()
    for module in QUANTIZED:
        stored = quantize(torch.randn(ROWS, COLUMNS).bfloat16(), block, scale)
        tensors |= {f"{module}.{k}": v for k, v in stored.items()}
    return checkpoint(tensors, config(block, **others))


def _float8_experts(block: tuple[int, int] | None, **others: Any) -> Files:
    tensors, experts = plain(), "model.layers.1.mlp.experts"
    for part, shape in (("gate_up", (12, 96)), ("down", (96, 6))):
        of_one = block or (shape[0] // 2 if part == "gate_up" else shape[0], shape[1])
        each = [quantize(torch.randn(shape).bfloat16(), of_one) for _ in range(3)]
        bits = torch.stack([stored["weight"].view(torch.uint8) for stored in each])
        tensors[f"{experts}.{part}_proj"] = bits.view(torch.float8_e4m3fn)
        scales = torch.stack([stored["weight_scale_inv"] for stored in each])
        tensors[f"{experts}.{part}_proj_scale_inv"] = scales
        if others:
            tensors[f"{experts}.{part}_proj_activation_scale"] = torch.rand(3) + 0.1
    return checkpoint(tensors, config(weight_block_size=block, **others))


def _one_scale() -> Files:
    """As AutoFP8 writes it."""
    tensors = plain()
    for module in QUANTIZED:
        stored = quantize(torch.randn(ROWS, COLUMNS).bfloat16(), (ROWS, COLUMNS))
        tensors[f"{module}.weight"] = stored["weight"]
        tensors[f"{module}.weight_scale"] = stored["weight_scale_inv"].view(())
        tensors[f"{module}.input_scale"] = torch.tensor(0.37)
    fields = config(activation_scheme="static")
    del fields["weight_block_size"]
    return checkpoint(tensors, fields)


def _fp4() -> Files:
    """As DeepSeek-V4 has it, and a linear in float8 beside them."""
    tensors = plain()
    stored = quantize(torch.randn(ROWS, COLUMNS).bfloat16(), (4, 96), torch.float8_e8m0fnu)
    tensors[f"{QUANTIZED[0]}.weight"] = stored["weight"]
    tensors[f"{QUANTIZED[0]}.scale"] = stored["weight_scale_inv"]
    codes = torch.randint(0, 256, (ROWS, 48)).to(torch.uint8)
    scales = torch.randint(110, 130, (ROWS, 3)).to(torch.uint8)
    tensors[f"{QUANTIZED[1]}.weight"] = codes.view(torch.int8)
    tensors[f"{QUANTIZED[1]}.scale"] = scales.view(torch.float8_e8m0fnu)
    return checkpoint(tensors, config((4, 96), scale_fmt="ue8m0", expert_dtype="fp4"))


def _gpt_oss() -> Files:
    tensors, experts = plain(), "model.layers.1.mlp.experts"
    for part, rows, groups in (("gate_up", 12, 3), ("down", 96, 1)):
        blocks = torch.randint(0, 256, (3, rows, groups, 16))
        scales = torch.randint(110, 130, (3, rows, groups))
        tensors[f"{experts}.{part}_proj_blocks"] = blocks.to(torch.uint8)
        tensors[f"{experts}.{part}_proj_scales"] = scales.to(torch.uint8)
        tensors[f"{experts}.{part}_proj_bias"] = torch.randn(3, rows).bfloat16()
    return checkpoint(tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def _packed(
    bits: int,
    version: str,
    *,
    dense: bool,
    zero_point: bool = False,
    g_idx: bool = False,
    size: int | None = 32,
    columns: int = 96,
) -> Files:
    """pack-quantized in a layout or with an order that the newest library doesn't write."""
    tensors = plain()
    groups = columns // size if size else 1
    for module in QUANTIZED:
        values = torch.randint(0, 1 << bits, (ROWS, columns))
        stored = {
            "weight_packed": pack(values, bits, dense),
            "weight_scale": (torch.rand(ROWS, groups) + 0.5).bfloat16(),
            "weight_shape": torch.tensor([ROWS, columns]),
        }
        if zero_point:
            points = torch.randint(0, 1 << bits, (groups, ROWS))
            stored["weight_zero_point"] = pack(points, bits, dense).T.contiguous()
        if g_idx:
            order = torch.arange(columns) // (size or columns)
            stored["weight_g_idx"] = order[torch.randperm(columns)].int()
        tensors |= {f"{module}.{k}": v for k, v in stored.items()}
    weights = {
        "num_bits": bits,
        "type": "int",
        "strategy": "group" if size else "channel",
        "group_size": size,
        "symmetric": not zero_point,
        "actorder": "group" if g_idx else None,
    }
    return checkpoint(
        tensors,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "version": version,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        },
    )


def pack(values: torch.Tensor, bits: int, dense: bool) -> torch.Tensor:
    """int32 [rows, words] of unsigned values, by whole rows as one long number."""
    per_word = 32 // bits
    rows = []
    for row in values.tolist():
        words, number = [], 0
        for i, value in enumerate(row):
            at = i * bits if dense else i // per_word * 32 + i % per_word * bits
            number |= value << at
        count = -(-len(row) * bits // 32) if dense else -(-len(row) // per_word)
        words = [number >> (32 * i) & 0xFFFFFFFF for i in range(count)]
        rows.append([w - (w >> 31 << 32) for w in words])
    return torch.tensor(rows, dtype=torch.int32)


def _sharded(files: Files) -> Files:
    """The same in three files with an index."""
    header, data = split(files["model.safetensors"])
    header.pop("__metadata__", None)
    names = sorted(header)
    result = {"config.json": files["config.json"]}
    where: dict[str, str] = {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        part, blob = {}, b""
        for name in names[i::3]:
            begin, end = header[name]["data_offsets"]
            part[name] = header[name] | {"data_offsets": [len(blob), len(blob) + end - begin]}
            blob += data[begin:end]
            where[name] = file
        result[file] = join(json.dumps(part), blob)
    index = {"metadata": {"total_size": len(data)}, "weight_map": where}
    return result | {INDEX: json.dumps(index).encode()}


def _nested(files: Files) -> Files:
    config = json.loads(files["config.json"])
    return files | {"config.json": json.dumps({"text_config": config}).encode()}


def _mixed() -> Files:
    """Several formats, claimed by exact name, pattern and class."""
    tensors, groups = plain(), {}
    places = {
        "W8A16": ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"),
        "FP8_DYNAMIC": ("model.layers.0.self_attn.o_proj", r"re:.*self_attn\.o_proj$"),
        "NVFP4": ("model.layers.1.mlp.experts.12.up_proj", "re:.*mlp.experts.*"),
        "W4A16_ASYM": ("model.layers.1.mlp.down_proj", "Linear"),
    }
    for name, (module, target) in places.items():
        linear = _linear(name)
        tensors |= {f"{module}.{k}": v for k, v in linear.stored().items()}
        group = linear.config()["config_groups"]["group_0"]
        groups[f"group of {name}"] = group | {"targets": [target]}
    return checkpoint(
        tensors,
        {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "version": "0.20.0",
            "config_groups": groups,
        },
    )
