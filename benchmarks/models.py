"""Models of random weights in the shapes and formats of real ones: right for speed, meaningless for
quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf_files import write_llama
from safetensors.torch import save_file

SHAPES = {
    "cuda": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "length": 2048,
    },
    "cpu": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 131_072,
        "length": 1000,
    },
}
GROUP = 128
SHARD_BYTES = 5 * 10**9
_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group"}
_FP4["group_size"] = 16
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
# The format's name and its config group.
QUANTIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "w4a16": (
        "pack-quantized",
        {
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            }
        },
    ),
    "w4a16-g32-asym": (
        "pack-quantized",
        {
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": False,
                "strategy": "group",
                "group_size": 32,
            }
        },
    ),
    "nvfp4a16": ("nvfp4-pack-quantized", {"weights": _FP4}),
    "fp8": (
        "float-quantized",
        {
            "weights": {**_FP8, "strategy": "channel"},
            "input_activations": {**_FP8, "strategy": "token", "dynamic": True},
        },
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"weights": _FP4, "input_activations": {**_FP4, "dynamic": "local"}},
    ),
}
# Other libraries' whole `quantization_config`.
OTHERS: dict[str, dict[str, Any]] = {
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    },
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "gptq",
    },
    "fp8-block": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [GROUP, GROUP],
    },
    "modelopt-nvfp4": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head"],
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.33.0"},
    },
}
# openai/gpt-oss-20b's, and what its config.json says.
GPT_OSS_LAYERS, GPT_OSS_EXPERTS = 24, 32
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200_002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * (GPT_OSS_LAYERS // 2),
    "max_position_embeddings": 131_072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": GPT_OSS_LAYERS,
    "num_key_value_heads": 8,
    "num_local_experts": GPT_OSS_EXPERTS,
    "output_router_logits": False,
    "pad_token_id": 199_999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150_000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 201_088,
}


def make_model(folder: Path, shape: dict[str, int], form: str, device: str, seed: int = 0) -> None:
    """A Llama of random weights, in files of 5 GB as they are published; `form` is dense, one of
    QUANTIZED or one of OTHERS. Of the form `gpt-oss` it is openai/gpt-oss-20b, whatever the shape; of
    `gguf-` and a mix one GGUF.

    Zero points are 8, in every nibble."""
    if form == "gpt-oss":
        write(folder, _gpt_oss(device), GPT_OSS)
        return
    if form.startswith("gguf-"):
        write_llama(folder / "model.gguf", shape, form.removeprefix("gguf-"), device, seed)
        return
    generator = torch.Generator(device=device).manual_seed(seed)
    hidden, inter, vocab = (shape[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    head = hidden // shape["num_attention_heads"]
    kv = head * shape["num_key_value_heads"]
    tensors: dict[str, torch.Tensor] = {}

    def dense(name: str, out: int, wide: int) -> None:
        weight = torch.empty((out, wide), dtype=torch.bfloat16, device=device)
        tensors[f"{name}.weight"] = weight.normal_(0, wide**-0.5, generator=generator)

    def random_bytes(out: int, wide: int) -> torch.Tensor:
        return torch.randint(
            0, 256, (out, wide), dtype=torch.uint8, device=device, generator=generator
        )

    def w4a16(name: str, out: int, wide: int, group: int = GROUP) -> None:
        scale = torch.empty((out, wide // group), device=device)
        scale.uniform_(0.5, 1.5, generator=generator).mul_(wide**-0.5 / 4.6)
        tensors[f"{name}.weight_packed"] = random_bytes(out, wide // 2).view(torch.int32)
        tensors[f"{name}.weight_scale"] = scale.bfloat16()
        tensors[f"{name}.weight_shape"] = torch.tensor([out, wide])

    def asymmetric(name: str, out: int, wide: int) -> None:
        w4a16(name, out, wide, 32)
        zeros = torch.full((out // 8, wide // 32), -0x77777778, dtype=torch.int32, device=device)
        tensors[f"{name}.weight_zero_point"] = zeros

    def fp8(name: str, out: int, wide: int) -> None:
        weight = torch.empty((out, wide), device=device).normal_(0, 64, generator=generator)
        tensors[f"{name}.weight"] = weight.to(torch.float8_e4m3fn)
        scale = torch.empty((out, 1), device=device).uniform_(0.5, 1.5, generator=generator)
        tensors[f"{name}.weight_scale"] = scale * (wide**-0.5 / 64)

    def nvfp4(name: str, out: int, wide: int) -> None:
        # Local scales about 1 under a global one, whose reciprocal the format multiplies by.
        scale = torch.empty((out, wide // 16), device=device).uniform_(
            0.5, 1.5, generator=generator
        )
        tensors[f"{name}.weight_packed"] = random_bytes(out, wide // 2)
        tensors[f"{name}.weight_scale"] = scale.to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_global_scale"] = torch.tensor([3.0 * wide**0.5])
        if form == "nvfp4":
            tensors[f"{name}.input_global_scale"] = torch.tensor([100.0])

    def qweight(name: str, out: int, wide: int) -> None:
        groups = wide // GROUP
        lines = (wide, out // 8) if form == "awq" else (wide // 8, out)
        # Zero points of 8, which GPTQ stores less one.
        zeros = -0x77777778 if form == "awq" else 0x77777777
        scale = torch.empty((groups, out), device=device)
        scale.uniform_(0.5, 1.5, generator=generator).mul_(wide**-0.5 / 4.6)
        tensors[f"{name}.qweight"] = random_bytes(lines[0], lines[1] * 4).view(torch.int32)
        tensors[f"{name}.qzeros"] = torch.full((groups, out // 8), zeros, dtype=torch.int32)
        tensors[f"{name}.scales"] = scale.half()
        if form == "gptq":
            tensors[f"{name}.g_idx"] = (torch.arange(wide) // GROUP).int()

    def blocks(name: str, out: int, wide: int) -> None:
        fp8(name, out, wide)
        del tensors[f"{name}.weight_scale"]
        scale = torch.empty((out // GROUP, wide // GROUP), device=device)
        scale.uniform_(0.5, 1.5, generator=generator).mul_(wide**-0.5 / 64)
        tensors[f"{name}.weight_scale_inv"] = scale

    def modelopt(name: str, out: int, wide: int) -> None:
        nvfp4(name, out, wide)
        tensors[f"{name}.weight"] = tensors.pop(f"{name}.weight_packed")
        whole = tensors.pop(f"{name}.weight_global_scale")
        tensors[f"{name}.weight_scale_2"] = (1 / whole).reshape(())
        tensors[f"{name}.input_scale"] = torch.tensor(0.01)

    forms = {
        "dense": dense, "w4a16": w4a16, "w4a16-g32-asym": asymmetric,
        "fp8": fp8, "nvfp4": nvfp4, "nvfp4a16": nvfp4,
        "awq": qweight, "gptq": qweight, "fp8-block": blocks, "modelopt-nvfp4": modelopt,
    }  # fmt: skip
    linear = forms[form]
    dense("model.embed_tokens", vocab, hidden)
    dense("lm_head", vocab, hidden)
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for i in range(shape["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for name, out, wide in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inter, hidden),
            ("mlp.up_proj", inter, hidden),
            ("mlp.down_proj", hidden, inter),
        ):
            linear(f"{at}.{name}", out, wide)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{k: v for k, v in shape.items() if k != "length"},
        "head_dim": head,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if form in OTHERS:
        config["quantization_config"] = OTHERS[form]
        # As AWQ and GPTQ checkpoints are published, whose scales are float16.
        config["torch_dtype"] = "float16" if form in ("awq", "gptq") else "bfloat16"
    elif form != "dense":
        name, group = QUANTIZED[form]
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": name,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], **group}},
            "ignore": ["lm_head"],
        }
    write(folder, tensors, config)


def _gpt_oss(device: str) -> dict[str, torch.Tensor]:
    """Random tensors of openai/gpt-oss-20b's names, shapes and dtypes."""
    generator = torch.Generator(device=device).manual_seed(0)
    wide, inner, heads, kv, head = 2880, 2880, 64, 8, 64
    tensors: dict[str, torch.Tensor] = {}

    def dense(name: str, *size: int, scale: float = 1.0) -> None:
        values = torch.empty(size, dtype=torch.bfloat16, device=device)
        tensors[name] = values.normal_(0, scale, generator=generator).cpu()

    def linear(name: str, out: int, columns: int) -> None:
        dense(f"{name}.weight", out, columns, scale=columns**-0.5)
        dense(f"{name}.bias", out, scale=0.02)

    def experts(name: str, out: int, columns: int) -> None:
        size = (GPT_OSS_EXPERTS, out, columns // 32)
        codes = torch.randint(
            0, 256, (*size, 16), dtype=torch.uint8, device=device, generator=generator
        )
        tensors[f"{name}_blocks"] = codes.cpu()
        # Powers of two about 2^-8: e2m1 is about 3 in size, a column's weight 1 / 54.
        tensors[f"{name}_scales"] = torch.randint(118, 121, size, dtype=torch.uint8)
        dense(f"{name}_bias", GPT_OSS_EXPERTS, out, scale=0.02)

    def ones(name: str) -> None:
        tensors[name] = torch.ones(wide, dtype=torch.bfloat16)

    dense("model.embed_tokens.weight", GPT_OSS["vocab_size"], wide)
    dense("lm_head.weight", GPT_OSS["vocab_size"], wide, scale=wide**-0.5)
    ones("model.norm.weight")
    for i in range(GPT_OSS_LAYERS):
        at = f"model.layers.{i}"
        for name, out, columns in (
            ("q_proj", heads * head, wide),
            ("k_proj", kv * head, wide),
            ("v_proj", kv * head, wide),
            ("o_proj", wide, heads * head),
        ):
            linear(f"{at}.self_attn.{name}", out, columns)
        dense(f"{at}.self_attn.sinks", heads)
        linear(f"{at}.mlp.router", GPT_OSS_EXPERTS, wide)
        experts(f"{at}.mlp.experts.gate_up_proj", 2 * inner, wide)
        experts(f"{at}.mlp.experts.down_proj", wide, inner)
        ones(f"{at}.input_layernorm.weight")
        ones(f"{at}.post_attention_layernorm.weight")
    return tensors


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """A checkpoint in files of 5 GB, as they are published."""
    folder.mkdir()
    shards: list[dict[str, torch.Tensor]] = [{}]
    for key, tensor in tensors.items():
        if sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][key] = tensor.cpu()
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        weight_map = {k: name for name, shard in zip(names, shards, strict=True) for k in shard}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
