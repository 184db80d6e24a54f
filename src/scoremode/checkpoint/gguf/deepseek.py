"""DeepSeek-V2, V3 and R1: latent attention, and a mixture after some dense layers.

Converters before April 2025 stored keys' and values' projection as one tensor, `attn_kv_b`, and heads
as the library has them; later ones `attn_k_b` and `attn_v_b`, and heads as llama.cpp runs them, one of
the latent's width for all, with the sizes that the model has in `attention.*_length_mla`.
"""

from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, flag, integer, real, rope_parameters
from scoremode.checkpoint.gguf.mixtures import (
    NEXTN,
    SHARED,
    SIGMOID,
    SOFTMAX,
    check_counts,
    check_groups,
    experts,
)
from scoremode.checkpoint.gguf.table import GATED, MODEL, RMS, Architecture
from scoremode.errors import CheckpointError, UnsupportedModel

# Converters write a tenth of the model's own `mscale_all_dim`.
_TENTH = 0.1


def _heads(facts: Facts) -> dict[str, Any]:
    rotated = facts.get(integer("rope.dimension_count"))
    latent = facts.get(integer("attention.kv_lora_rank"))
    heads = facts.get(integer("attention.head_count"))
    # Of heads as they are stored; of one for all, that is the latent's and what rotates.
    shared = facts.get(integer("attention.head_count_kv", heads))
    keys = facts.get(integer("attention.key_length"))
    values = facts.get(integer("attention.value_length"))
    if facts.says("attention.key_length_mla"):
        if (shared, keys, values) != (1, latent + rotated, latent):
            raise CheckpointError(
                f"heads of {keys} for {shared} keys and of {values} for values are not those of a "
                f"latent of {latent} with {rotated} that rotate"
            )
        keys = facts.get(integer("attention.key_length_mla"))
        values = facts.get(integer("attention.value_length_mla"))
    elif shared != heads:
        raise CheckpointError(
            f"{facts.architecture}.attention.head_count_kv is {shared}: not {heads}"
        )
    if not 0 < rotated < keys:
        raise CheckpointError(f"{rotated} values of a head of {keys} rotate (rope.dimension_count)")
    rope = rope_parameters(facts, rotated, partial=False)
    if rope["rope_type"] == "yarn":
        rope |= _attention(facts, rope)
    elif rope["rope_type"] != "default":
        raise UnsupportedModel(f"rotations scaled by {rope['rope_type']}: not supported")
    return {
        "num_key_value_heads": heads,
        "kv_lora_rank": latent,
        "q_lora_rank": facts.get(integer("attention.q_lora_rank", None)),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": values,
        "head_dim": rotated,
        "rope_parameters": rope,
    }


def _attention(facts: Facts, rope: dict[str, Any]) -> dict[str, float]:
    """Yarn's factor of the attention's scale: llama.cpp, as all of these models, does it as with
    `mscale` and `mscale_all_dim` of the same value."""
    key = "rope.scaling.yarn_log_multiplier"
    scale = facts.get(real(key, 0.0))
    if not scale or "attention_factor" in rope:
        raise UnsupportedModel(
            f"yarn, and {facts.architecture}.{key} is "
            f"{f'{scale:g} beside an attn_factor' if scale else 'not there'}: how it scales the "
            "attention is not known"
        )
    mscale = round(scale / _TENTH, 6)
    return {"mscale": mscale, "mscale_all_dim": mscale}


def _settings(facts: Facts) -> dict[str, Any]:
    gating = facts.get(integer("expert_gating_func", SOFTMAX)) or SOFTMAX
    norm = facts.get(flag("expert_weights_norm", False))
    if gating not in (SOFTMAX, SIGMOID):
        raise UnsupportedModel(f"deepseek2.expert_gating_func is {gating}: not supported")
    if gating == SOFTMAX and norm:
        raise UnsupportedModel(
            "deepseek2.expert_weights_norm is true where routers have a softmax, which the library "
            "does not do: not supported"
        )
    check_counts(facts)
    return {
        "num_hidden_layers": _layers(facts),
        "hidden_act": "silu",
        "attention_bias": False,
        "first_k_dense_replace": facts.get(integer("leading_dense_block_count", 0)),
        "n_shared_experts": facts.get(integer("expert_shared_count")),
        "routed_scaling_factor": facts.get(real("expert_weights_scale", 1.0)) or 1.0,
        "norm_topk_prob": norm,
        **_groups(facts, gating),
        **(_V3 if gating == SIGMOID else {}),
    }


_V3 = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "rope_interleave": True,
}


def _layers(facts: Facts) -> int:
    layers = facts.layers - facts.get(integer("nextn_predict_layers", 0))
    if layers < 1:
        raise CheckpointError("deepseek2.nextn_predict_layers leaves no layer of block_count")
    return layers


def _groups(facts: Facts, gating: int) -> dict[str, Any]:
    """The number of groups that experts lie in, and of those that a token's are from.

    V2-Lite, the one without a low rank for queries, has none, and converters before October 2025
    didn't say that of the others.
    """
    count = facts.get(integer("expert_group_count", 0))
    used = facts.get(integer("expert_group_used_count", 0))
    lite = not facts.says("attention.q_lora_rank")
    if not count and not lite:
        raise UnsupportedModel(
            "the metadata has no deepseek2.expert_group_count, as files before October 2025: whether "
            "experts are chosen by groups is not known"
        )
    count, used = count or 1, used or 1
    # V3's score of a group is that of its best two.
    check_groups(facts, count, used, least=2 if gating == SIGMOID else 1)
    return {
        "n_group": count,
        "topk_group": used,
        "topk_method": "greedy" if count == 1 else "group_limited_greedy",
    }


DEEPSEEK = {
    "deepseek2": Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        RMS
        | {
            "num_experts_per_tok": integer("expert_used_count"),
            "n_routed_experts": integer("expert_count"),
            "moe_intermediate_size": integer("expert_feed_forward_length"),
        },
        MODEL
        | GATED
        | experts("mlp", "gate")
        | SHARED
        | NEXTN
        | {
            f"blk.*.{tensor}": f"model.layers.*.{name}"
            for tensor, name in {
                "attn_norm": "input_layernorm",
                "attn_q": "self_attn.q_proj",
                "attn_q_a": "self_attn.q_a_proj",
                "attn_q_a_norm": "self_attn.q_a_layernorm",
                "attn_q_b": "self_attn.q_b_proj",
                "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
                "attn_kv_a_norm": "self_attn.kv_a_layernorm",
                "attn_kv_b": "self_attn.kv_b_proj",
                "attn_k_b": "self_attn.k_b_proj",
                "attn_v_b": "self_attn.v_b_proj",
                "attn_output": "self_attn.o_proj",
                "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
            }.items()
        },
        heads=_heads,
        settings=_settings,
    ),
}
