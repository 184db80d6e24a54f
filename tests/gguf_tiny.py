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
TINY: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"attention_bias": True, "mlp_bias": True},
    "qwen2": _SIZES,
    "qwen3": _SIZES | {"head_dim": 32, "attention_bias": True},
}
