"""Settings of tiny models, by GGUF architecture, as transformers has them."""

from typing import Any

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_TIED = _SIZES | {"tie_word_embeddings": True}
TINY: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"attention_bias": True, "mlp_bias": True},
    "qwen2": _SIZES,
    "qwen3": _SIZES | {"head_dim": 32, "attention_bias": True},
    "granite": _SIZES,
    "phi3": _SIZES,
    "olmo2": _SIZES,
    "command-r": _TIED | {"use_qk_norm": True},
    "cohere2": _TIED,
    "glm4": _SIZES | {"head_dim": 16},
    "stablelm": _SIZES | {"use_qkv_bias": True},
    "smollm3": _TIED,
    "exaone4": _SIZES,
    "gemma": _TIED | {"head_dim": 16},
    "gemma2": _TIED | {"head_dim": 16},
    "gemma3": _TIED | {"head_dim": 16},
    "starcoder2": _TIED,
    "gpt2": {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 128, "vocab_size": 80},
    "falcon": {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "vocab_size": 80,
    },
    "bloom": {"hidden_size": 64, "n_layer": 1, "n_head": 4, "vocab_size": 80},
    "gptneox": _TIED,
    "phi2": _SIZES,
    "ernie4_5": _TIED | {"head_dim": 16, "use_bias": True},
    "hunyuan-dense": _SIZES | {"head_dim": 16},
    "seed_oss": _SIZES | {"head_dim": 16, "mlp_bias": True, "attention_out_bias": True},
    "olmo": _SIZES,
    "nemotron": _SIZES | {"attention_bias": True, "mlp_bias": True},
    "jais2": _SIZES,
    "arcee": _SIZES,
    "starcoder": {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 128, "vocab_size": 80},
}
# What their metadata needs beside what `gguf_headers` says.
SAID: dict[str, dict[str, Any]] = {
    "granite": {"logit_scale": 8.0},
    "cohere2": {"logit_scale": 0.25, "attention.sliding_window": 16},
    "bloom": {"feed_forward_length": 256},
    "gptneox": {"use_parallel_residual": True},
    "starcoder": {"attention.head_count_kv": 1},
}
