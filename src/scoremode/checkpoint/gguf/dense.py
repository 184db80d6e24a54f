"""Architectures whose layers are Llama's, or nearly: a gate and up beside attention, norms before them.

Source of each: llama.cpp's `conversion/` for what is written, `src/models/` for what is read, and
`gguf-py/gguf/tensor_mapping.py` for names; transformers' configuration for fields. What files don't
say is what llama.cpp takes then: no sliding window for Mistral and Starcoder 2, say.

Gemma's architectures, whose norms are stored plus the one that the library adds.

Source: as for `dense.py`. What attention scores are scaled by is no key: llama.cpp, and so all that is
known of a file, takes the number of layers for it, the largest model being the one that differs.
"""

from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, flag, real
from scoremode.checkpoint.gguf.table import (
    ATTENTION,
    BIAS,
    BIASES,
    LAYER,
    LLAMA,
    MODEL,
    NORMS,
    QK_NORMS,
    RMS,
    SILU,
    SIZES,
    TURNS,
    Architecture,
    Names,
    blocks,
    layer_types,
    plus_one,
    window,
)  # fmt: skip
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
_FUSED_MLP = MODEL | blocks(LAYER, {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"})
_PHI3 = _FUSED_MLP | blocks(
    LAYER,
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
    },
)
_GLM4_NORMS = {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_HUNYUAN_NORMS = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
# One norm before both attention and MLP.
_COHERE = {name: module for name, module in LLAMA.items() if name != "blk.*.ffn_norm"}
_SEED_OSS = _COHERE | blocks(LAYER, {"post_attention_norm": "post_attention_layernorm"})


def _granite(facts: Facts) -> dict[str, Any]:
    # llama.cpp has it as a switch for rotation here.
    facts.expect(flag("rope.scaling.finetuned"), True)
    heads, hidden = facts.config["num_attention_heads"], facts.config["hidden_size"]
    usual = (hidden // heads) ** -0.5
    return {
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
        "sliding_window": size or None,
        "original_max_position_embeddings": original,
    }


def _olmo2(facts: Facts) -> dict[str, Any]:
    """Olmo 3 goes by the same name and has windows, whose layers rotate without scaling."""
    size = window(facts, 0)
    if not size:
        return {}
    rope = facts.config["rope_parameters"]
    facts.expect(real("rope.freq_base_swa"), rope["rope_theta"])
    plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": size,
        "layer_types": layer_types(facts, 4),
        "rope_parameters": {"full_attention": rope, "sliding_attention": plain},
    }


def _cohere(facts: Facts) -> dict[str, Any]:
    return {
        "logit_scale": facts.get(real("logit_scale", 0.0)) or 1.0,
        "use_qk_norm": facts.has("attn_q_norm.weight"),
    }


def _cohere2(facts: Facts) -> dict[str, Any]:
    """Layers without a window rotate nothing, in the library as in llama.cpp."""
    theta = facts.config["rope_parameters"]["rope_theta"]
    facts.expect(real("rope.freq_base_swa"), theta)
    return {
        "logit_scale": facts.get(real("logit_scale")) or 1.0,
        "sliding_window": window(facts),
        "layer_types": layer_types(facts, 4),
    }


def _smollm3(facts: Facts) -> dict[str, Any]:
    """Each fourth layer rotates nothing, which llama.cpp has for all files."""
    return {
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
        "sliding_window": size if has_windows else None,
        "layer_types": types if has_windows else ["full_attention"] * facts.layers,
    }


def _olmo(facts: Facts) -> dict[str, Any]:
    """Norms without weights, whose constant is the library's."""
    facts.expect(real("attention.layer_norm_epsilon"), 1e-5)
    return {"clip_qkv": facts.get(real("attention.clamp_kqv", 0.0)) or None}


def _mistral3(facts: Facts) -> dict[str, Any]:
    """Ministral 3, by what its scores are scaled with; without that it is Llama's again."""
    beta = facts.get(real("attention.temperature_scale", 0.0))
    mscale = facts.get(real("rope.scaling.yarn_log_multiplier", 0.0))
    rope = facts.config["rope_parameters"]
    if not beta and not mscale:
        return {field: facts.has(tensor) for field, tensor in BIASES.items()}
    if not (beta and mscale) or rope["rope_type"] != "yarn" or "attention_factor" in rope:
        raise UnsupportedModel(
            f"mistral3.attention.temperature_scale {beta:g} and rope.scaling.yarn_log_multiplier "
            f"{mscale:g} beside a rotation of type {rope['rope_type']}: not supported"
        )
    scales = {"mscale": 1.0, "mscale_all_dim": mscale, "llama_4_scaling_beta": beta}
    return {
        "model_type": "ministral3",
        "architectures": ["Ministral3ForCausalLM"],
        "sliding_window": None,
        "rope_parameters": rope | scales,
    }


def _dense(model_type: str, model: str, names: Names = LLAMA, **more: Any) -> Architecture:
    """An architecture with RMS norms, unless `fields` says otherwise, and SiLU."""
    more["constants"] = SILU | more.get("constants", {})
    return Architecture(model_type, model, more.pop("fields", RMS), names, **more)


# Llama's own heads: their size is given, and rotated by turns.
_LLAMA: dict[str, Any] = {"layouts": TURNS, "head_dim": True, "biases": BIASES}
# By `general.architecture`.
DENSE = {
    # Mistral's too, which has no name of its own there.
    "llama": _dense("llama", "LlamaForCausalLM", **_LLAMA),
    "qwen2": _dense("qwen2", "Qwen2ForCausalLM"),
    "qwen3": _dense("qwen3", "Qwen3ForCausalLM", LLAMA | QK_NORMS, head_dim=True, biases=BIAS),
    "granite": _dense(
        "granite", "GraniteForCausalLM", layouts=TURNS, biases=BIASES, settings=_granite
    ),
    "phi3": _dense("phi3", "Phi3ForCausalLM", _PHI3, partial=True, settings=_phi3),
    "olmo2": _dense("olmo2", "Olmo2ForCausalLM", _POST_NORMS, biases=BIAS, settings=_olmo2),
    "command-r": _dense(
        "cohere",
        "CohereForCausalLM",
        _COHERE | QK_NORMS,
        fields=NORMS,
        biases=BIAS | {"use_qk_norm": "attn_q_norm.weight"},
        settings=_cohere,
    ),
    "cohere2": _dense(
        "cohere2", "Cohere2ForCausalLM", _COHERE, fields=NORMS, biases=BIAS, settings=_cohere2
    ),
    "glm4": _dense(
        "glm4",
        "Glm4ForCausalLM",
        _FUSED_MLP | ATTENTION | blocks(LAYER, _GLM4_NORMS),
        head_dim=True,
        partial=True,
        biases=BIAS,
    ),
    "stablelm": _dense(
        "stablelm",
        "StableLmForCausalLM",
        fields=NORMS,
        partial=True,
        constants={"qk_layernorm": False},
        biases={"use_qkv_bias": "attn_q.bias"},
        settings=lambda facts: {"use_parallel_residual": not facts.has("ffn_norm.weight")},
        ignored=frozenset(("use_parallel_residual",)),
    ),
    "smollm3": _dense(
        "smollm3", "SmolLM3ForCausalLM", layouts=TURNS, biases=BIASES, settings=_smollm3
    ),
    "exaone4": _dense(
        "exaone4", "Exaone4ForCausalLM", _POST_NORMS, head_dim=True, settings=_exaone4
    ),
    "ernie4_5": _dense(
        "ernie4_5", "Ernie4_5ForCausalLM", head_dim=True, biases={"use_bias": "attn_q.bias"}
    ),
    "hunyuan-dense": _dense(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        LLAMA | blocks(LAYER, _HUNYUAN_NORMS),
        head_dim=True,
        biases=BIAS,
    ),
    "seed_oss": _dense(
        "seed_oss",
        "SeedOssForCausalLM",
        _SEED_OSS,
        head_dim=True,
        constants={"attention_dropout": 0.0, "residual_dropout": 0.0},
        biases=BIASES | {"attention_out_bias": "attn_output.bias"},
    ),
    "olmo": _dense(
        "olmo", "OlmoForCausalLM", fields=SIZES, layouts=TURNS, biases=BIAS, settings=_olmo
    ),
    "mistral3": _dense(
        "llama", "LlamaForCausalLM", layouts=TURNS, head_dim=True, settings=_mistral3
    ),
    # The library has neither; their layers are Llama's, and so is what llama.cpp runs.
    "exaone": _dense(
        "llama",
        "LlamaForCausalLM",
        biases=BIASES,
        ignored=frozenset(("attention.layer_norm_epsilon",)),
    ),
    "internlm2": _dense("llama", "LlamaForCausalLM", **_LLAMA),
}


# Of the 27B models of each generation.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
_FOUR_NORMS = LLAMA | blocks(
    LAYER,
    {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)


def _newer(facts: Facts) -> dict[str, Any]:
    """The fields of the config that Gemma 2 and 3 share."""
    of_27b = facts.layers == _LAYERS_OF_27B[facts.architecture]
    config = facts.config
    shared = config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": shared if of_27b else config["head_dim"]}


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


def _of_gemma(
    model_type: str, model: str, names: dict[str, str], activation: str, **more: Any
) -> Architecture:
    constants = {activation: "gelu_pytorch_tanh", "attention_bias": False}
    return Architecture(
        model_type, model, RMS, names, plus_one(names), head_dim=True, constants=constants, **more
    )


_ACT = "hidden_activation"
GEMMA = {
    "gemma": _of_gemma("gemma", "GemmaForCausalLM", LLAMA, "hidden_act"),
    "gemma2": _of_gemma("gemma2", "Gemma2ForCausalLM", _FOUR_NORMS, _ACT, settings=_gemma2),
    "gemma3": _of_gemma(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _FOUR_NORMS | QK_NORMS,
        _ACT,
        settings=_gemma3,
        # How many tokens an image is.
        ignored=frozenset(("mm.tokens_per_image",)),
    ),
}
