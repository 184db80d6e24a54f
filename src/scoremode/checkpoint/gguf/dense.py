"""Architectures whose layers are Llama's, or nearly: a gate and up beside attention, norms before them.

Source of each: llama.cpp's `conversion/` for what is written, `src/models/` for what is read, and
`gguf-py/gguf/tensor_mapping.py` for names; transformers' configuration for fields. What files don't
say is what llama.cpp takes then: no sliding window for Mistral and Starcoder 2, say.

Gemma's architectures, whose norms are stored plus the one that the library adds.

Source: as for `dense.py`. What attention scores are scaled by is no key: llama.cpp, and so all that is
known of a file, takes the number of layers for it, the largest model being the one that differs.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, flag, real
from scoremode.checkpoint.gguf.table import (
    ATTENTION,
    LLAMA,
    MODEL,
    NORMS,
    QK_NORMS,
    RMS,
    SIZES,
    TURNS,
    Architecture,
    Layout,
    layer_types,
    window,
)
from scoremode.errors import UnsupportedModel

# Norms of what attention and MLP give, and none before them.
_POST_NORMS = {
    name: module
    for name, module in LLAMA.items()
    if name not in ("blk.*.attn_norm", "blk.*.ffn_norm")
} | {
    "blk.*.post_attention_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.post_ffw_norm": "model.layers.*.post_feedforward_layernorm",
    **QK_NORMS,
}
# Gate and up as one.
_FUSED_MLP = {
    "blk.*.ffn_up": "model.layers.*.mlp.gate_up_proj",
    "blk.*.ffn_down": "model.layers.*.mlp.down_proj",
}
_PHI3 = (
    MODEL
    | _FUSED_MLP
    | {
        "blk.*.attn_norm": "model.layers.*.input_layernorm",
        "blk.*.attn_qkv": "model.layers.*.self_attn.qkv_proj",
        "blk.*.attn_output": "model.layers.*.self_attn.o_proj",
        "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
    }
)
_GLM4 = (
    MODEL
    | ATTENTION
    | _FUSED_MLP
    | {
        "blk.*.post_attention_norm": "model.layers.*.post_self_attn_layernorm",
        "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
        "blk.*.post_ffw_norm": "model.layers.*.post_mlp_layernorm",
    }
)
_HUNYUAN = LLAMA | {
    "blk.*.attn_q_norm": "model.layers.*.self_attn.query_layernorm",
    "blk.*.attn_k_norm": "model.layers.*.self_attn.key_layernorm",
}
_SEED_OSS = {name: module for name, module in LLAMA.items() if name != "blk.*.ffn_norm"} | {
    "blk.*.post_attention_norm": "model.layers.*.post_attention_layernorm",
}
# One norm before both attention and MLP.
_COHERE = {name: module for name, module in LLAMA.items() if name != "blk.*.ffn_norm"}


def _silu(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "silu"}


def _with_biases(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "attention_bias": facts.has("attn_q.bias"),
        "mlp_bias": facts.has("ffn_up.bias"),
    }


def _attention_bias(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "silu", "attention_bias": facts.has("attn_q.bias")}


def _granite(facts: Facts) -> dict[str, Any]:
    # llama.cpp has it as a switch for rotation here.
    facts.expect(flag("rope.scaling.finetuned"), True)
    heads, hidden = facts.config["num_attention_heads"], facts.config["hidden_size"]
    usual = (hidden // heads) ** -0.5
    return _with_biases(facts) | {
        "logits_scaling": facts.get(real("logit_scale")),
        # 0 is none, as llama.cpp reads it.
        "embedding_multiplier": facts.get(real("embedding_scale", 0.0)) or 1.0,
        "residual_multiplier": facts.get(real("residual_scale", 0.0)) or 1.0,
        "attention_multiplier": facts.get(real("attention.scale", 0.0)) or usual,
    }


def _phi3(facts: Facts) -> dict[str, Any]:
    size = window(facts, 0)
    rope = facts.config["rope_parameters"]
    # The library takes it from here, where it makes a difference.
    original = rope.get("original_max_position_embeddings", facts.config["max_position_embeddings"])
    return {
        "hidden_act": "silu",
        "sliding_window": size or None,
        "original_max_position_embeddings": original,
    }


def _olmo2(facts: Facts) -> dict[str, Any]:
    """Olmo 3 goes by the same name and has windows, whose layers rotate without scaling."""
    size = window(facts, 0)
    if not size:
        return _attention_bias(facts)
    rope = facts.config["rope_parameters"]
    facts.expect(real("rope.freq_base_swa"), rope["rope_theta"])
    plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return _attention_bias(facts) | {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": size,
        "layer_types": layer_types(facts, 4),
        "rope_parameters": {"full_attention": rope, "sliding_attention": plain},
    }


def _cohere(facts: Facts) -> dict[str, Any]:
    return _attention_bias(facts) | {
        "logit_scale": facts.get(real("logit_scale", 0.0)) or 1.0,
        "use_qk_norm": facts.has("attn_q_norm.weight"),
    }


def _cohere2(facts: Facts) -> dict[str, Any]:
    """Layers without a window rotate nothing, in the library as in llama.cpp."""
    theta = facts.config["rope_parameters"]["rope_theta"]
    facts.expect(real("rope.freq_base_swa"), theta)
    return _attention_bias(facts) | {
        "logit_scale": facts.get(real("logit_scale")) or 1.0,
        "sliding_window": window(facts),
        "layer_types": layer_types(facts, 4),
    }


def _stablelm(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "use_qkv_bias": facts.has("attn_q.bias"),
        "use_parallel_residual": not facts.has("ffn_norm.weight"),
        "qk_layernorm": False,
    }


def _smollm3(facts: Facts) -> dict[str, Any]:
    """Each fourth layer rotates nothing, which llama.cpp has for all files."""
    return _with_biases(facts) | {
        "no_rope_layers": [int(n % 4 != 3) for n in range(facts.layers)],
        "layer_types": ["full_attention"] * facts.layers,
        "use_sliding_window": False,
    }


def _exaone4(facts: Facts) -> dict[str, Any]:
    """The model of 64 layers has windows, and so has one that says where; layers without one rotate
    nothing then."""
    has_windows = facts.layers == 64 or facts.says("attention.sliding_window_pattern")
    size = window(facts, 4096)
    facts.expect(real("rope.freq_base_swa"), facts.config["rope_parameters"]["rope_theta"])
    types = layer_types(facts, 4)
    return {
        "hidden_act": "silu",
        "sliding_window": size if has_windows else None,
        "layer_types": types if has_windows else ["full_attention"] * facts.layers,
    }


def _ernie(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "silu", "use_bias": facts.has("attn_q.bias")}


def _seed_oss(facts: Facts) -> dict[str, Any]:
    return _with_biases(facts) | {
        "attention_out_bias": facts.has("attn_output.bias"),
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
    }


def _olmo(facts: Facts) -> dict[str, Any]:
    """Norms without weights, whose constant is the library's."""
    facts.expect(real("attention.layer_norm_epsilon"), 1e-5)
    return _attention_bias(facts) | {
        "clip_qkv": facts.get(real("attention.clamp_kqv", 0.0)) or None
    }


def _mistral3(facts: Facts) -> dict[str, Any]:
    """Ministral 3, by what its scores are scaled with; without that it is Llama's again."""
    beta = facts.get(real("attention.temperature_scale", 0.0))
    mscale = facts.get(real("rope.scaling.yarn_log_multiplier", 0.0))
    rope = facts.config["rope_parameters"]
    if not beta and not mscale:
        return _with_biases(facts)
    if not (beta and mscale) or rope["rope_type"] != "yarn" or "attention_factor" in rope:
        raise UnsupportedModel(
            f"mistral3.attention.temperature_scale {beta:g} and rope.scaling.yarn_log_multiplier "
            f"{mscale:g} beside a rotation of type {rope['rope_type']}: not supported"
        )
    scales = {"mscale": 1.0, "mscale_all_dim": mscale, "llama_4_scaling_beta": beta}
    return {
        "model_type": "ministral3",
        "architectures": ["Ministral3ForCausalLM"],
        "hidden_act": "silu",
        "sliding_window": None,
        "rope_parameters": rope | scales,
    }


# By `general.architecture`.
DENSE = {
    # Mistral's too, which has no name of its own there.
    "llama": Architecture(
        "llama", "LlamaForCausalLM", RMS, LLAMA, TURNS, head_dim=True, settings=_with_biases
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", RMS, LLAMA, settings=_silu),
    "qwen3": Architecture(
        "qwen3",
        "Qwen3ForCausalLM",
        RMS,
        LLAMA | QK_NORMS,
        head_dim=True,
        settings=_attention_bias,
    ),
    "granite": Architecture("granite", "GraniteForCausalLM", RMS, LLAMA, TURNS, settings=_granite),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", RMS, _PHI3, partial=True, settings=_phi3),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", RMS, _POST_NORMS, settings=_olmo2),
    "command-r": Architecture(
        "cohere", "CohereForCausalLM", NORMS, _COHERE | QK_NORMS, settings=_cohere
    ),
    "cohere2": Architecture("cohere2", "Cohere2ForCausalLM", NORMS, _COHERE, settings=_cohere2),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        RMS,
        _GLM4,
        head_dim=True,
        partial=True,
        settings=_attention_bias,
    ),
    "stablelm": Architecture(
        "stablelm",
        "StableLmForCausalLM",
        NORMS,
        LLAMA,
        partial=True,
        settings=_stablelm,
        ignored=frozenset(("use_parallel_residual",)),
    ),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", RMS, LLAMA, TURNS, settings=_smollm3),
    "exaone4": Architecture(
        "exaone4", "Exaone4ForCausalLM", RMS, _POST_NORMS, head_dim=True, settings=_exaone4
    ),
    "ernie4_5": Architecture(
        "ernie4_5", "Ernie4_5ForCausalLM", RMS, LLAMA, head_dim=True, settings=_ernie
    ),
    "hunyuan-dense": Architecture(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        RMS,
        _HUNYUAN,
        head_dim=True,
        settings=_attention_bias,
    ),
    "seed_oss": Architecture(
        "seed_oss", "SeedOssForCausalLM", RMS, _SEED_OSS, head_dim=True, settings=_seed_oss
    ),
    "olmo": Architecture("olmo", "OlmoForCausalLM", SIZES, LLAMA, TURNS, settings=_olmo),
    "mistral3": Architecture(
        "llama", "LlamaForCausalLM", RMS, LLAMA, TURNS, head_dim=True, settings=_mistral3
    ),
    # The library has neither; their layers are Llama's, and so is what llama.cpp runs.
    "exaone": Architecture(
        "llama",
        "LlamaForCausalLM",
        RMS,
        LLAMA,
        settings=_with_biases,
        ignored=frozenset(("attention.layer_norm_epsilon",)),
    ),
    "internlm2": Architecture(
        "llama", "LlamaForCausalLM", RMS, LLAMA, TURNS, head_dim=True, settings=_with_biases
    ),
}


# Of the 27B models of each generation.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
_FOUR_NORMS = LLAMA | {
    "blk.*.post_attention_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.ffn_norm": "model.layers.*.pre_feedforward_layernorm",
    "blk.*.post_ffw_norm": "model.layers.*.post_feedforward_layernorm",
}


def _plus_one(config: Mapping[str, Any]) -> Layout:
    return Layout(less=1.0)


def _norms(names: Mapping[str, str]) -> dict[str, Any]:
    return {name: _plus_one for name in names if name.endswith("_norm")}


def _gemma(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False}


def _newer(facts: Facts) -> dict[str, Any]:
    """The fields of the config that Gemma 2 and 3 share."""
    of_27b = facts.layers == _LAYERS_OF_27B[facts.architecture]
    config = facts.config
    shared = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": shared if of_27b else config["head_dim"],
    }


def _gemma2(facts: Facts) -> dict[str, Any]:
    theta = facts.config["rope_parameters"]["rope_theta"]
    facts.expect(real("rope.freq_base_swa"), theta)
    return _newer(facts) | {
        "sliding_window": window(facts, 4096),
        "layer_types": layer_types(facts, 2),
        "attn_logit_softcapping": facts.get(real("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": facts.get(real("final_logit_softcapping", 30.0)),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    """Layers with a window rotate by a base of their own, and without scaling."""
    size = window(facts, 0)
    types = layer_types(facts, 6) if size else ["full_attention"] * facts.layers
    local = facts.get(real("rope.freq_base_swa", 10000.0))
    return _newer(facts) | {
        # One that no layer has is a number all the same.
        "sliding_window": size or 4096,
        "layer_types": types,
        "rope_parameters": {
            "full_attention": facts.config["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "attn_logit_softcapping": None,
        "final_logit_softcapping": facts.get(real("final_logit_softcapping", 0.0)) or None,
        "use_bidirectional_attention": False,
    }


GEMMA = {
    "gemma": Architecture(
        "gemma",
        "GemmaForCausalLM",
        RMS,
        LLAMA,
        _norms(LLAMA),
        head_dim=True,
        settings=_gemma,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        RMS,
        _FOUR_NORMS,
        _norms(_FOUR_NORMS),
        head_dim=True,
        settings=_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        RMS,
        _FOUR_NORMS | QK_NORMS,
        _norms(_FOUR_NORMS | QK_NORMS),
        head_dim=True,
        settings=_gemma3,
        # How many tokens an image is.
        ignored=frozenset(("mm.tokens_per_image",)),
    ),
}
