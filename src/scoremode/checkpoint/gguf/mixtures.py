"""Architectures whose layers are mixtures of experts.

How a router weighs is partly the architecture's own: llama.cpp has it in the code of its graph
(`src/models/`) and no file says it, as no config does where transformers has it in code. What files do
say of it, `expert_weights_norm`, `expert_weights_scale` and `expert_gating_func`, is held against that.

Mixtures of Ernie 4.5 and Hunyuan, where all tokens go through some experts besides their own.
"""

from collections.abc import Callable, Mapping
from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, flag, integer, real
from scoremode.checkpoint.gguf.table import (
    ATTENTION,
    BIAS,
    GATED,
    LAYER,
    LLAMA,
    MODEL,
    QK_NORMS,
    RMS,
    SILU,
    TURNS,
    Architecture,
    Layout,
    blocks,
    window,
)
from scoremode.errors import CheckpointError, UnsupportedModel

# `expert_gating_func`: over all experts, each by itself, over those chosen.
SOFTMAX, SIGMOID, _SOFTMAX_CHOSEN = 1, 2, 3


def experts(home: str, router: str) -> dict[str, str]:
    """Names of a mixture that lies in `home`, with its router."""
    names = {
        f"ffn_{part}_exps": f"experts.{part}_proj" for part in ("gate", "up", "down", "gate_up")
    }
    return blocks(f"{LAYER}.{home}", names | {"ffn_gate_inp": router})


def _shared(name: str) -> dict[str, str]:
    """Names of experts that all tokens go through."""
    parts = ("gate", "up", "down")
    return blocks(f"{LAYER}.mlp.{name}", {f"ffn_{part}_shexp": f"{part}_proj" for part in parts})


SHARED = _shared("shared_experts")
# A layer that predicts a token further on, which no score needs, under the names it has elsewhere.
NEXTN = blocks(
    LAYER,
    {f"nextn.{name}": name for name in ("eh_proj", "embed_tokens", "enorm", "hnorm")}
    | {f"nextn.shared_head_{name}": f"shared_head.{name}" for name in ("head", "norm")},
)
_POST = blocks(LAYER, {"post_attention_norm": "post_attention_layernorm"})
_LLAMA = MODEL | ATTENTION | blocks(LAYER, {"ffn_norm": "post_attention_layernorm"})
_USED = {"num_experts_per_tok": integer("expert_used_count")}
_WIDTH = {"moe_intermediate_size": integer("expert_feed_forward_length")}
_NUM = _USED | {"num_experts": integer("expert_count")}
_LOCAL = _USED | {"num_local_experts": integer("expert_count")}


def check_counts(facts: Facts) -> None:
    """Raises CheckpointError unless a token's experts are some of those there are."""
    count, used = facts.get(integer("expert_count")), facts.get(integer("expert_used_count"))
    if not 0 < used <= count:
        raise CheckpointError(
            f"{facts.architecture}.expert_used_count is {used}, of {count} experts"
        )


def check_groups(facts: Facts, count: int, used: int, *, least: int = 1) -> None:
    """Raises CheckpointError unless experts are `count` groups of at least `least`, and a token's
    experts some of those in `used` groups."""
    experts, chosen = facts.get(integer("expert_count")), facts.get(integer("expert_used_count"))
    size = experts // count if count > 0 else 0
    if size < least or experts % count or not 0 < used <= count or chosen > used * size:
        raise CheckpointError(
            f"{facts.architecture}.expert_group_used_count is {used} of {count} groups, for {chosen} "
            f"of {experts} experts"
        )


def weighed(facts: Facts, gating: int, *, norm: bool) -> None:
    """Holds what a file says of its routers against what the architecture always does.

    `norm`: whether the weights of the experts chosen are made to sum to one. Raises UnsupportedModel,
    CheckpointError.
    """
    check_counts(facts)
    facts.expect(integer("expert_gating_func"), gating)
    facts.expect(flag("expert_weights_norm"), norm)
    facts.expect(real("expert_weights_scale"), 0.0, 1.0)
    facts.expect(integer("expert_group_count"), 0, 1)
    facts.expect(integer("expert_group_used_count"), 0, 1)


def _weighs(gating: int, *, norm: bool) -> Callable[[Facts], Mapping[str, Any]]:
    """The settings of an architecture whose routers all weigh alike: nothing to add."""

    def settings(facts: Facts) -> dict[str, Any]:
        weighed(facts, gating, norm=norm)
        return {}

    return settings


def _qwen3(facts: Facts) -> dict[str, Any]:
    # Qwen3-Coder's say that they have no shared expert.
    facts.expect(integer("expert_shared_feed_forward_length"), 0)
    weighed(facts, SOFTMAX, norm=True)
    return {}


def _gpt_oss(facts: Facts) -> dict[str, Any]:
    weighed(facts, _SOFTMAX_CHOSEN, norm=False)
    facts.expect(integer("attention.sliding_window_pattern"), 2)
    facts.expect(real("rope.freq_base_swa"), facts.config["rope_parameters"]["rope_theta"])
    if facts.get(integer("feed_forward_length")) != facts.get(_WIDTH["moe_intermediate_size"]):
        raise CheckpointError("feed_forward_length is not expert_feed_forward_length")
    kinds = ("sliding_attention", "full_attention")
    rope = facts.config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        # The models' own; llama.cpp rounds the two ends of yarn's ramp, whatever the model.
        rope = rope | {"truncate": False}
    return {
        "layer_types": [kinds[layer % 2] for layer in range(facts.layers)],
        "sliding_window": window(facts),
        "rope_parameters": rope,
    }


def _granite(facts: Facts) -> dict[str, Any]:
    weighed(facts, SOFTMAX, norm=True)
    head_dim = facts.config["hidden_size"] // facts.config["num_attention_heads"]
    return {
        # 0 is none, as llama.cpp reads it.
        "attention_multiplier": facts.get(real("attention.scale", 0.0)) or head_dim**-0.5,
        "embedding_multiplier": facts.get(real("embedding_scale", 0.0)) or 1.0,
        "residual_multiplier": facts.get(real("residual_scale", 0.0)) or 1.0,
        "logits_scaling": facts.get(real("logit_scale")),
    }


def _glm(facts: Facts) -> dict[str, Any]:
    check_counts(facts)
    norm = facts.get(flag("expert_weights_norm", False))
    # 0 is none, as llama.cpp reads it.
    scale = facts.get(real("expert_weights_scale", 0.0)) or 1.0
    gating = facts.get(integer("expert_gating_func", SIGMOID)) or SIGMOID
    if gating != SIGMOID:
        raise UnsupportedModel(
            f"glm4moe.expert_gating_func is {gating}: only {SIGMOID} is supported"
        )
    groups = facts.get(integer("expert_group_count", 1)) or 1
    used = facts.get(integer("expert_group_used_count", 1)) or 1
    # A group's score is that of its best two.
    check_groups(facts, groups, used, least=2)
    layers = facts.layers - facts.get(integer("nextn_predict_layers", 0))
    if layers < 1:
        raise CheckpointError("glm4moe.nextn_predict_layers leaves no layer of block_count")
    return {
        "num_hidden_layers": layers,
        "n_shared_experts": facts.get(integer("expert_shared_count")),
        "first_k_dense_replace": facts.get(integer("leading_dense_block_count", 0)),
        "norm_topk_prob": norm,
        "routed_scaling_factor": scale,
        "n_group": groups,
        "topk_group": used,
    }


_QWEN = SILU | {"use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []}
# By `general.architecture`, where `expert_count` is not 0.
MIXTURES = {
    # Mixtral.
    "llama": Architecture(
        "mixtral",
        "MixtralForCausalLM",
        RMS | _LOCAL,
        _LLAMA | experts("mlp", "gate"),
        TURNS,
        head_dim=True,
        constants=SILU | {"sliding_window": None},
        biases=BIAS,
        settings=_weighs(SOFTMAX, norm=True),
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        RMS
        | _NUM
        | _WIDTH
        | {"shared_expert_intermediate_size": integer("expert_shared_feed_forward_length")},
        _LLAMA
        | experts("mlp", "gate")
        | _shared("shared_expert")
        | blocks(LAYER, {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}),
        {"blk.*.ffn_gate_inp_shexp": lambda config: Layout(row=True)},
        head_dim=True,
        constants=_QWEN | {"norm_topk_prob": False, "qkv_bias": True},
        biases=BIAS,
        settings=_weighs(SOFTMAX, norm=False),
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        RMS | _LOCAL | _WIDTH,
        _LLAMA | experts("mlp", "gate") | QK_NORMS,
        head_dim=True,
        constants=_QWEN | {"norm_topk_prob": True},
        biases=BIAS,
        settings=_qwen3,
    ),
    "olmoe": Architecture(
        "olmoe",
        "OlmoeForCausalLM",
        RMS | _NUM,
        _LLAMA | experts("mlp", "gate") | QK_NORMS,
        head_dim=True,
        constants=SILU | {"norm_topk_prob": False, "clip_qkv": None},
        biases=BIAS,
        settings=_weighs(SOFTMAX, norm=False),
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        RMS | _LOCAL,
        MODEL
        | ATTENTION
        | _POST
        | experts("mlp", "router")
        | blocks(LAYER, {"attn_sinks.weight": "self_attn.sinks"}),
        head_dim=True,
        constants=SILU | {"attention_bias": True, "swiglu_limit": 7.0},
        settings=_gpt_oss,
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        RMS | _LOCAL,
        _LLAMA | experts("block_sparse_moe", "router"),
        TURNS,
        constants=SILU | {"attention_bias": False},
        settings=_granite,
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        RMS | _USED | _WIDTH | {"n_routed_experts": integer("expert_count")},
        MODEL
        | ATTENTION
        | _POST
        | QK_NORMS
        | experts("mlp", "gate")
        | SHARED
        | NEXTN
        | {name: module for name, module in GATED.items() if name != "blk.*.ffn_norm"}
        | blocks(LAYER, {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}),
        head_dim=True,
        partial=True,
        constants=SILU,
        biases=BIAS | {"use_qk_norm": "attn_q_norm.weight"},
        settings=_glm,
    ),
}


def _ernie(facts: Facts) -> dict[str, Any]:
    weighed(facts, SOFTMAX, norm=True)
    first = facts.get(integer("leading_dense_block_count"))
    interval = facts.get(integer("interleave_moe_layer_step"))
    mixed = [n for n in range(facts.layers) if f"blk.{n}.ffn_gate_inp.weight" in facts.tensors]
    last = max(mixed, default=-1)
    # Only the tensors say which is the last mixture.
    if interval < 1 or mixed != [n for n in range(first, last + 1) if (n + 1) % interval == 0]:
        raise CheckpointError(
            f"layers {mixed} are mixtures, not each {interval}. from {first} on, as the metadata says"
        )
    return {
        "moe_num_shared_experts": facts.get(integer("expert_shared_count", 0)),
        "moe_layer_start_index": first,
        "moe_layer_end_index": last,
        "moe_layer_interval": interval,
    }


def _hunyuan(facts: Facts) -> dict[str, Any]:
    weighed(facts, SOFTMAX, norm=True)
    width = facts.get(integer("feed_forward_length"))
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        facts.expect(integer(key), width)
    facts.expect(integer("expert_shared_count"), 1)
    return {}


# By `general.architecture`, where `expert_count` is not 0.
SHARED_EXPERTS = {
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        RMS
        | {
            "moe_num_experts": integer("expert_count"),
            "moe_k": integer("expert_used_count"),
            "moe_intermediate_size": integer("expert_feed_forward_length"),
        },
        LLAMA
        | experts("mlp", "gate")
        | SHARED
        | blocks(LAYER, {"exp_probs_b.bias": "mlp.gate.moe_statics.e_score_correction_bias"}),
        {"blk.*.exp_probs_b": lambda config: Layout(row=True)},
        head_dim=True,
        constants=SILU | {"moe_norm_min": 1e-12},
        biases={"use_bias": "attn_q.bias"},
        settings=_ernie,
        # A quotient by the number of keys' heads, which is the experts' width in no model.
        ignored=frozenset(("expert_shared_feed_forward_length",)),
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        "HunYuanMoEV1ForCausalLM",
        RMS
        | {
            "num_experts": integer("expert_count"),
            "moe_topk": integer("expert_used_count"),
        },
        LLAMA
        | experts("mlp", "gate.wg")
        | _shared("shared_mlp")
        | blocks(
            LAYER,
            {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
        ),
        head_dim=True,
        constants=SILU,
        biases=BIAS,
        settings=_hunyuan,
    ),
}
