"""Settings of tiny dense models: rarer architectures, and what the common ones have at times."""

from typing import Any

_ROPE = {"rope_type": "default", "rope_theta": 1e6}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
_LOCAL = {"rope_type": "default", "rope_theta": 5000.0}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.9],
    "long_factor": [1.0, 2.0, 3.0, 4.5, 6.0, 9.1],
}
_BIASES = {"attention_bias": True, "mlp_bias": True}

# As MODELS of gguf_models.
DENSE: dict[str, dict[str, Any]] = {
    "llama-biases": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
        **_BIASES,
    },
    "llama-yarn": {"model_type": "llama", "num_key_value_heads": 1, "rope_parameters": _YARN},
    "ministral3": {
        "rope_parameters": _YARN
        | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    },
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True, "rope_parameters": _ROPE},
    "qwen3-wide": {
        "model_type": "qwen3",
        "num_key_value_heads": 4,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "attention_bias": True,
    },
    "gemma": {"head_dim": 32},
    "gemma3-linear": {
        "model_type": "gemma3_text",
        "vocab_size": 260,
        "sliding_window": 7,
        "num_hidden_layers": 7,
        "query_pre_attn_scalar": 16,
        "rope_parameters": {"full_attention": _LINEAR, "sliding_attention": _LOCAL},
    },
    "phi3-long": {
        "model_type": "phi3",
        "tie_word_embeddings": True,
        "sliding_window": 9,
        "head_dim": None,
        "original_max_position_embeddings": 32,
        "rope_parameters": _LONGROPE,
    },
    "cohere2": {
        "logit_scale": 0.25,
        "sliding_window": 7,
        "num_hidden_layers": 5,
        "rotary_pct": 1.0,
    },
    "command-r-norms": {
        "model_type": "cohere",
        "logit_scale": 0.5,
        "use_qk_norm": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
    },
    "olmo": {"clip_qkv": 0.3},
    "olmo3": {
        "sliding_window": 7,
        "num_hidden_layers": 5,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": _YARN,
        },
    },
    "granite-biases": {
        "model_type": "granite",
        "tie_word_embeddings": True,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.2,
        **_BIASES,
    },
    "glm4-plain": {
        "model_type": "glm4",
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
        "head_dim": 32,
    },
    "stablelm-parallel": {
        "model_type": "stablelm",
        "partial_rotary_factor": 0.25,
        "use_parallel_residual": True,
        "use_qkv_bias": True,
    },
    "falcon-2": {
        "model_type": "falcon",
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1,
        "alibi": False,
        "bias": False,
        "head_dim": None,
        "tie_word_embeddings": False,
    },
    "starcoder": {
        "model_type": "gpt_bigcode",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "num_key_value_heads": None,
    },
    "bloom": {"n_layer": 2, "n_head": 4, "hidden_size": 64},
    "phi": {
        "num_key_value_heads": 4,
        "intermediate_size": 256,
        "partial_rotary_factor": 0.5,
        "head_dim": None,
        "layer_norm_epsilon": 1e-5,
    },
    "smollm3": {"num_hidden_layers": 5},
    "exaone4": {"sliding_window": 7, "num_hidden_layers": 5, "sliding_window_pattern": 4},
    "ernie4_5": {"head_dim": 32, "use_bias": True},
    "hunyuan_v1_dense": {
        "attention_bias": True,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 1e4,
            "alpha": 1000.0,
            "factor": 1.0,
        },
    },
    "seed_oss": {"head_dim": 32, "attention_bias": True},
    "nemotron": {"partial_rotary_factor": 0.5, **_BIASES},
    "jais2": {},
    "arcee": {"head_dim": 32},
}
