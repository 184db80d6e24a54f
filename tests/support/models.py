"""Tiny random checkpoints of real architectures, and transformers' own log-probabilities of them."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import Protocol

VOCAB = 101
# What this release of the library calls a cache.
CACHE_KEYWORD = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(LlamaForCausalLM.forward).parameters
)
_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Every one of these differs from the others in something that a scorer can get wrong.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 7},
    "gemma2": {
        "sliding_window": 7,
        "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 8,
    },
    "gemma3_text": {"sliding_window": 7, "query_pre_attn_scalar": 8},
    "phi3": {},
    "phi": {},
    "opt": {
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "do_layer_norm_before": True,
    },
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "gpt_neox": {"rotary_pct": 0.5},
    "granite": {"logits_scaling": 1.5, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "cohere": {"logit_scale": 0.5},
    "cohere2": {"logit_scale": 0.5, "sliding_window": 7},
    "olmo2": {},
    "starcoder2": {"sliding_window": 7},
    "stablelm": {},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True, "head_dim": None},
    "bloom": {"n_layer": 3, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64},
    "bert": {},
    "electra": {"embedding_size": 32},
    # Two attentions a layer, each counted as a layer; experts that hand their input on.
    "longcat_flash": {
        "num_layers": 2,
        "num_hidden_layers": None,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 64,
        "n_routed_experts": 6,
        "zero_expert_num": 2,
        "moe_topk": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "gptj": {"n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4, "n_positions": 64},
}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 6, "num_experts_per_tok": 2}
# Mixtures of experts. The router's weights are drawn like any other, so that most experts are hit.
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": _EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]},
    "gpt_oss": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 7},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "head_dim": None,
        "n_routed_experts": 8,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    # Whose gate chooses without groups, and knows no bias.
    "deepseek_v2": {
        "num_key_value_heads": 4,
        "head_dim": None,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "glm4_moe": {
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "ernie4_5_moe": {
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_intermediate_size": 64,
        "moe_layer_start_index": 1,
    },
    # Stored fused.
    "granitemoe": {"num_local_experts": 6, "num_experts_per_tok": 2},
    # Stored fused and transposed, without biases.
    "aria_text": {"moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 1},
    # Routers in float32, whatever the model's dtype.
    "hunyuan_v1_moe": _EXPERTS | {"moe_topk": 2},
    # No gates.
    "nemotron_h": {
        "layers_block_type": ["full_attention", "moe", "moe"],
        "num_hidden_layers": None,
        "n_routed_experts": 6,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 32,
    },
    # Stored gate and up interleaved: converted whole.
    # Its head's table is padded: transformers 5.24 leaves the padding out of the head, and those before
    # out of the logits.
    "inkling2_text": {
        "vocab_size": VOCAB + 3,
        "unpadded_vocab_size": VOCAB,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
    # A module of its own, that the library's experts interface doesn't know.
    "llama4_text": {
        "num_local_experts": 6,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 64,
        "attention_chunk_size": 8,
        "interleave_moe_layer_step": 2,
    },
}
ARCHITECTURES |= MIXTURES


def needs(model_type: str) -> None:
    """Skips the test where transformers, of which several versions are allowed, has no such model."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not know {model_type}")


def make_checkpoint(
    folder: Path,
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """A random model of ARCHITECTURES[name], saved by transformers, large enough weights to matter."""
    settings = dict(_SHAPE) | ARCHITECTURES[name]
    model_type = settings.pop("model_type", name)
    settings = {key: value for key, value in settings.items() if value is not None}
    if change:
        change(settings)
    needs(model_type)
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
            elif "bias" in key:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype).save_pretrained(folder)
    return folder


def random_plan(
    length: int = 20, windows: int = 5, tail: int = 6, vocabulary: int = VOCAB, **rules: Any
) -> Plan:
    """Disjoint windows of random ids, the last one short."""
    rng = np.random.default_rng(7)
    tokens = rng.integers(3, vocabulary, windows * length + tail).astype(np.int32)
    protocol = Protocol("test", context_length=length, tail="keep", **rules)
    return make_plan(tokens, protocol.resolve(None))


def library_model(folder: Path, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model.eval()


@torch.no_grad()
def library_logprobs(model: Any, plan: Plan) -> np.ndarray:
    """float64 [scored]: transformers' full forward, window by window, float64 log-softmax."""
    result = []
    for window in plan:
        ids = torch.from_numpy(window.inputs.astype(np.int64))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0].double()
        targets = torch.from_numpy(window.targets.astype(np.int64))
        logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
        result.append(logprobs[window.first - 1 :].numpy())
    return np.concatenate(result)


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Changes the tensors of a saved single-file checkpoint."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
