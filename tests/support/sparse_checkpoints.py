"""Checkpoints of any size without their bytes: headers, and holes where weights would be."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Name → dtype in safetensors' spelling, shape, and bytes where they are needed.
Holes = dict[str, tuple[str, tuple[int, ...], bytes | None]]
_BYTES = {"BF16": 2, "F32": 4, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1, "I8": 1}


def write_holes(folder: Path, config: dict[str, Any], tensors: Holes, shards: int = 1) -> str:
    """A folder whose weight files have their full size and take no room on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names, where = list(tensors), {}
    for i in range(shards):
        file = "model.safetensors"
        if shards > 1:
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        where |= dict.fromkeys(part, file)
        _write(folder / file, {name: tensors[name] for name in part})
    if shards > 1:
        index = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def _write(file: Path, tensors: Holes) -> None:
    header, at = {}, 0
    # In safetensors' own order: by size of an element, then by name.
    tensors = dict(sorted(tensors.items(), key=lambda item: (-_BYTES[item[1][0]], item[0])))
    for name, (dtype, shape, _) in tensors.items():
        size = _BYTES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with file.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, (_, _, content) in tensors.items():
            if content is not None:
                f.seek(8 + len(text) + header[name]["data_offsets"][0])
                f.write(content)
        os.truncate(f.fileno(), 8 + len(text) + at)


def packed(module: str, rows: int, columns: int, bits: int = 4, size: int = 128) -> Holes:
    """A pack-quantized linear."""
    shape = rows.to_bytes(8, "little") + columns.to_bytes(8, "little")
    return {
        f"{module}.weight_packed": ("I32", (rows, columns * bits // 32), None),
        f"{module}.weight_scale": ("BF16", (rows, columns // size), None),
        f"{module}.weight_shape": ("I64", (2,), shape),
    }


def nvfp4(module: str, rows: int, columns: int) -> Holes:
    return {
        f"{module}.weight_packed": ("U8", (rows, columns // 2), None),
        f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16), None),
        f"{module}.weight_global_scale": ("F32", (1,), None),
        f"{module}.input_global_scale": ("F32", (1,), None),
    }


def w4a16(*targets: str, size: int = 128) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": size}
    return {"targets": list(targets or ["Linear"]), "weights": weights, "format": "pack-quantized"}


def llama70b() -> tuple[dict[str, Any], Holes]:
    """Llama 3.1 70B's shapes in W4A16 g128."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
        "num_hidden_layers": 80, "vocab_size": 128256, "max_position_embeddings": 131072,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": w4a16()}, "ignore": ["lm_head"],
        },
    }  # fmt: skip
    tensors: Holes = {"model.embed_tokens.weight": ("BF16", (128256, 8192), None)}
    for i in range(80):
        layer = f"model.layers.{i}"
        for name, rows, columns in (
            ("self_attn.q_proj", 8192, 8192), ("self_attn.k_proj", 1024, 8192),
            ("self_attn.v_proj", 1024, 8192), ("self_attn.o_proj", 8192, 8192),
            ("mlp.gate_proj", 28672, 8192), ("mlp.up_proj", 28672, 8192),
            ("mlp.down_proj", 8192, 28672),
        ):  # fmt: skip
            tensors |= packed(f"{layer}.{name}", rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = ("BF16", (8192,), None)
    tensors["model.norm.weight"] = ("BF16", (8192,), None)
    tensors["lm_head.weight"] = ("BF16", (128256, 8192), None)
    return config, tensors


def experts(layers: int, count: int) -> tuple[dict[str, Any], Holes]:
    """A mixture of experts as Kimi K2 has them, W4A16 g32; shared ones and attention are dense."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "hidden_size": 7168, "num_hidden_layers": layers, "vocab_size": 163840,
        "max_position_embeddings": 262144, "n_routed_experts": count, "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": w4a16(size=32)},
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                       r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
        },
    }  # fmt: skip
    tensors: Holes = {"model.embed_tokens.weight": ("BF16", (163840, 7168), None)}
    for i in range(layers):
        mlp = f"model.layers.{i}.mlp"
        tensors[f"model.layers.{i}.self_attn.o_proj.weight"] = ("BF16", (7168, 8192), None)
        tensors[f"{mlp}.gate.weight"] = ("BF16", (count, 7168), None)
        tensors[f"{mlp}.shared_experts.up_proj.weight"] = ("BF16", (2048, 7168), None)
        for name in _experts(mlp, count):
            rows, columns = (7168, 2048) if name.endswith("down_proj") else (2048, 7168)
            tensors |= packed(name, rows, columns, size=32)
    tensors["lm_head.weight"] = ("BF16", (163840, 7168), None)
    return config, tensors


def _experts(mlp: str, count: int) -> Iterator[str]:
    for i in range(count):
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{mlp}.experts.{i}.{name}"
