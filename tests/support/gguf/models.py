"""Tiny random models as folders, the same bits each time, for GGUF files to be made of.

A value is exact integer arithmetic on Philox' counter, which no release of numpy changes: so
a golden file (golden/gguf) can say where in the folder each of its values lies.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.gguf.dense_models import DENSE
from transformers import AutoConfig, AutoModelForCausalLM

# Bytes, a pair of them, three special tokens; the embedding has rows that are no token's, too.
TOKENS, VOCAB = 260, 272
_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 259,
}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
}
# Name → what differs from _SHAPE; `model_type` where it isn't the name; None takes a setting away.
MODELS: dict[str, dict[str, Any]] = {
    **DENSE,
    "llama": {"tie_word_embeddings": False},
    "llama-tied": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {
        "sliding_window": 7,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 16,
    },
    # Of which the converter takes such rows away.
    "gemma3": {
        "model_type": "gemma3_text",
        "vocab_size": TOKENS,
        "sliding_window": 7,
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 16,
    },
    "phi3": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "command-r": {"model_type": "cohere", "logit_scale": 0.5},
    "olmo2": {},
    "granite": {
        "logits_scaling": 1.5,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "falcon": {
        "num_kv_heads": 1,
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "alibi": False,
        "bias": False,
        "head_dim": None,
    },
    "falcon-new": {
        "model_type": "falcon",
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "alibi": False,
        "bias": False,
        "head_dim": None,
    },
    "stablelm": {"partial_rotary_factor": 0.5},
    "starcoder2": {"sliding_window": None},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_ctx": 128},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32},
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 48, "norm_topk_prob": False},
    "qwen3_moe": _EXPERTS | {"norm_topk_prob": True},
    "gpt_oss": {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "sliding_window": 7,
        "max_position_embeddings": 128,
        "rope_parameters": _YARN | {"truncate": False},
    },
    # Lite's: queries of one matrix, a softmax, the best of all.
    "deepseek_v2": _DEEPSEEK
    | {
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "rope_parameters": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek_v2-groups": _DEEPSEEK
    | {
        "model_type": "deepseek_v2",
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "scoring_func": "softmax",
    },
    "deepseek_v3": _DEEPSEEK
    | {
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "granitemoe": {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "logits_scaling": 1.5,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "olmoe": {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "num_key_value_heads": 4,
    },
    "ernie4_5_moe": {
        "intermediate_size": 128,
        "moe_num_experts": 5,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 1,
    },
    "hunyuan_v1_moe": {
        "num_experts": 5,
        "moe_topk": [2, 2],
        "intermediate_size": 32,
        "moe_intermediate_size": [32, 32],
        "num_shared_expert": [1, 1],
    },
    "glm4_moe": {
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.7,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
    },
}


def make_folder(folder: Path, name: str, **changes: Any) -> Path:
    """The model MODELS[name], these settings changed, as a float32 folder with a tokenizer."""
    settings = _SHAPE | MODELS[name] | changes
    model_type = str(settings.pop("model_type", name))
    settings = {key: value for key, value in settings.items() if value is not None}
    if MODELS[name].get("q_lora_rank", 0) is None:
        settings["q_lora_rank"] = None
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **settings), dtype=torch.float32
    )
    tied = getattr(model, "all_tied_weights_keys", {})
    stored = [*model.named_parameters(), *_stored_buffers(model)]
    with torch.no_grad():
        for key, values in stored:
            if key not in tied:
                values.copy_(_values(key, values))
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _stored_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    known = model.state_dict()
    return [(n, b) for n, b in model.named_buffers() if n in known and b.is_floating_point()]


def _values(key: str, like: torch.Tensor) -> torch.Tensor:
    """About normal, large enough to matter; norms' weights lie around one, as they were made."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
    bits = np.random.Philox(key=seed).random_raw(like.numel())
    sixteenths = bits.view(np.uint16).astype(np.int64).reshape(-1, 4).sum(1) - 2 * 65535
    # Four uniform numbers' sum has a deviation of 65536 / sqrt(3).
    normal = (sixteenths / 37837).reshape(tuple(like.shape))
    is_matrix = like.dim() > 1 and not key.endswith("bias")
    values = torch.from_numpy((normal * (0.3 if is_matrix else 0.1)).astype(np.float32))
    is_norm = not is_matrix and "norm" in key.lower() and key.endswith("weight")
    return like + values if is_norm else values


def _write_tokenizer(folder: Path) -> None:
    """Bytes as GPT-2 writes them, a pair of them, and three special tokens."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<pad>"]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(letters) + 1 + i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate((*letters, "th"))},
            # One at least, which llama.cpp asks for.
            "merges": [["t", "h"]],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(made, ensure_ascii=False))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
