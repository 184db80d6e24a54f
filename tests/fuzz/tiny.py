"""What all the small checkpoints share: two quantized linears beside a few dense tensors."""

import json
from collections.abc import Callable
from typing import Any

import torch
from fuzz.files import Files, join, split
from safetensors.torch import save

Tensors = dict[str, torch.Tensor]
ROWS, COLUMNS = 6, 256
QUANTIZED = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.experts.12.up_proj")


def plain() -> Tensors:
    return {
        "model.embed_tokens.weight": torch.randn(5, 16).bfloat16(),
        "model.layers.0.input_layernorm.weight": torch.randn(16).bfloat16(),
        "model.layers.0.mlp.gate.weight": torch.randn(3, 16),
        "lm_head.weight": torch.randn(5, 16).half(),
    }


def quantized(
    make: Callable[[torch.Tensor], Tensors], rows: int = ROWS, columns: int = COLUMNS
) -> Tensors:
    """Two modules as `make` stores them, which may give their dense weight as well."""
    tensors = plain()
    for module in QUANTIZED:
        stored = make(torch.randn(rows, columns).bfloat16())
        tensors |= {f"{module}.{k}": v.contiguous() for k, v in stored.items() if k != "dense"}
    return tensors


def checkpoint(
    tensors: Tensors,
    declared: dict[str, Any] | None,
    metadata: dict[str, str] | None = None,
    **fields: Any,
) -> Files:
    """`fields`: others at the config's top."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "vocab_size": 5,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    if declared is not None:
        config["quantization_config"] = declared | {"ignore": ["lm_head", "re:.*mlp.gate$"]}
    # The library writes metadata in another order each time.
    header, data = split(save(tensors))
    text = json.dumps({"__metadata__": {"format": "pt"} | (metadata or {})} | header)
    return {
        "config.json": json.dumps(config | fields).encode(),
        "model.safetensors": join(text + " " * (-len(text) % 8), data),
    }
