"""A published config with its sizes shrunk, and nothing else changed.

Widths, heads, experts and the number of layers become small; the vocabulary, all ids and every other
field stay as their authors ship them. Of the layers a prefix stays that has every kind of layer.
"""

import copy
from typing import Any

__all__ = ["dense_config", "shrink"]

_WIDTH, _INTERMEDIATE = 32, 64
_LORA = _WIDTH
# Divided by eight, so that what is twice another stays twice another.
_EIGHTHS = {
    "head_dim", "attention_head_dim", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim",
    "qk_head_dim", "global_head_dim", "swa_head_dim", "swa_v_head_dim", "index_head_dim",
    "sparse_index_dim",
    "rotary_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "mamba_head_dim", "ssm_state_size",
}  # fmt: skip
_SIZES = {
    "hidden_size": _WIDTH, "moe_latent_size": _WIDTH, "text_hidden_size": _WIDTH,
    "mm_hidden_size": _WIDTH, "out_hidden_size": _WIDTH, "projection_dim": _WIDTH,
    "projector_hidden_size": _WIDTH, "vt_hidden_size": _WIDTH, "vt_intermediate_size": _WIDTH,
    "q_lora_rank": _LORA, "kv_lora_rank": _LORA, "o_lora_rank": _LORA, "o_groups": 2,
    "num_attention_heads": 4, "swa_num_attention_heads": 4, "num_heads": 4, "vt_num_attention_heads": 4,
    "index_n_heads": 4, "sparse_num_index_heads": 4, "mamba_num_heads": 8, "n_groups": 2,
    "intermediate_size": _INTERMEDIATE, "intermediate_size_mlp": _INTERMEDIATE,
    "dense_intermediate_size": _INTERMEDIATE,
}  # fmt: skip
_HEADS = {
    "num_key_value_heads": "num_attention_heads",
    "swa_num_key_value_heads": "swa_num_attention_heads",
    "num_global_key_value_heads": "num_attention_heads",
}
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_CHOICES = ("num_experts_per_tok", "top_k_experts", "experts_per_token")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer")


def dense_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config without what it says of quantization, at its top and within."""
    return {
        key: dense_config(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in ("quantization_config", "compression_config")
    }


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a model of the same kind that takes a few megabytes beside its vocabulary."""
    small = copy.deepcopy(config)
    for key, value in config.items():
        if key in ("vision_config", "audio_config") and value:
            small[key] = _encoder(value)
        elif key == "text_config":
            small[key] = shrink(value)
    _shrink_layers(small)
    _shrink_sizes(small)
    return small


def _shrink_sizes(config: dict[str, Any]) -> None:
    before = dict(config)
    choices = next((before[k] for k in _CHOICES if before.get(k)), 1)
    for key, value in before.items():
        if isinstance(value, dict) and not key.endswith("_config"):
            _shrink_rotary(value)
        elif key == "sparse_attention_config":
            _shrink_sizes(value)
        if not isinstance(value, int) or isinstance(value, bool) or not value:
            continue
        if key in _SIZES:
            config[key] = _SIZES[key]
        elif key in _EIGHTHS:
            config[key] = value // 8
        elif key.endswith("intermediate_size") or key == "share_expert_dim":
            config[key] = _WIDTH
        elif key in _HEADS:
            # As many as queries (all but grouped), one for all, or a group for every two.
            config[key] = {before.get(_HEADS[key]): 4, 1: 1}.get(value, 2)
        elif key in _EXPERTS:
            config[key] = max(2 * choices, 2 * (before.get("n_group") or 1), 4)


def _shrink_rotary(fields: dict[str, Any]) -> None:
    """Sections are parts of half a head's width."""
    section = fields.get("mrope_section")
    if section:
        whole, rest = divmod(sum(section) // 8, 3)
        fields["mrope_section"] = [whole + (i < rest) for i in range(3)]


def _encoder(config: dict[str, Any]) -> dict[str, Any]:
    small = dict(config)
    _shrink_sizes(small)
    taps = len(config.get("deepstack_visual_indexes") or ())
    for key in ("depth", "num_hidden_layers", "vt_num_hidden_layers"):
        if key in config:
            small[key] = max(2, taps)
    if taps:
        small["deepstack_visual_indexes"] = list(range(taps))
    for key in ("head_dim", "global_head_dim"):
        if key in config:
            small[key] = 8
    if "num_position_embeddings" in config:
        small["num_position_embeddings"] = 16
    if "position_embedding_size" in config:
        small["position_embedding_size"] = 16
    return small


def _shrink_layers(config: dict[str, Any]) -> None:
    """Cuts the layers to the shortest prefix with every kind of layer, and all lists of layers."""
    nested = config.get("sparse_attention_config") or {}
    name = next((n for n in _LAYERS if config.get(n)), None)
    # Nemotron-H may say it by its list alone.
    count = config[name] if name else len(config.get("layers_block_type") or ())
    if not count:
        return
    extra = config.get("num_nextn_predict_layers") or 0
    per_layer: list[tuple[dict[str, Any], str, Any]] = [
        (fields, key, value)
        for fields in (config, nested)
        for key, value in fields.items()
        # Nemotron-H's pattern is a letter a layer.
        if isinstance(value, list) or key == "hybrid_override_pattern"
        if len(value) in {count, count + 1, count + extra}
    ]
    kinds = [_kind(config, [v[i] for _, _, v in per_layer], i) for i in range(count)]
    most = max(kinds.index(kind) for kind in kinds) + 1
    # One layer alone would hide what happens between two.
    few = max(most, 2)
    if name:
        config[name] = few
    for fields, key, value in per_layer:
        fields[key] = value[:few] + value[count:]


def _kind(config: dict[str, Any], values: list[Any], i: int) -> tuple[Any, ...]:
    def every(step: Any) -> bool:
        return bool(step) and (i + 1) % step == 0

    return (
        *(repr(value) for value in values),
        i < (config.get("first_k_dense_replace") or 0),
        i < (config.get("num_hash_layers") or 0),
        every(config.get("interleave_moe_layer_step")),
        every(config.get("full_attention_interval")),
        # Llama 4's layers without positions, which its config may leave to the library.
        config.get("model_type") == "llama4_text" and every(4),
    )
