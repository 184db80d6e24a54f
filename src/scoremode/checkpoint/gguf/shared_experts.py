"""Mixtures of Ernie 4.5 and Hunyuan, where all tokens go through some experts besides their own."""

from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, integer
from scoremode.checkpoint.gguf.layout import Layout
from scoremode.checkpoint.gguf.mixtures import SHARED, SOFTMAX, experts, weighed
from scoremode.checkpoint.gguf.table import LLAMA, RMS, Architecture
from scoremode.errors import CheckpointError

__all__ = ["SHARED_EXPERTS"]


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
        "hidden_act": "silu",
        "use_bias": facts.has("attn_q.bias"),
        "moe_num_shared_experts": facts.get(integer("expert_shared_count", 0)),
        "moe_layer_start_index": first,
        "moe_layer_end_index": last,
        "moe_layer_interval": interval,
        "moe_norm_min": 1e-12,
    }


def _hunyuan(facts: Facts) -> dict[str, Any]:
    weighed(facts, SOFTMAX, norm=True)
    width = facts.get(integer("feed_forward_length"))
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        facts.expect(integer(key), width)
    facts.expect(integer("expert_shared_count"), 1)
    return {"hidden_act": "silu", "attention_bias": facts.has("attn_q.bias")}


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
        | {
            "blk.*.exp_probs_b.bias": (
                "model.layers.*.mlp.gate.moe_statics.e_score_correction_bias"
            )
        },
        {"blk.*.exp_probs_b": lambda config: Layout(row=True)},
        head_dim=True,
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
        | {
            f"blk.*.{tensor}": f"model.layers.*.{name}"
            for tensor, name in {
                "attn_q_norm": "self_attn.query_layernorm",
                "attn_k_norm": "self_attn.key_layernorm",
                "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
                "ffn_up_shexp": "mlp.shared_mlp.up_proj",
                "ffn_down_shexp": "mlp.shared_mlp.down_proj",
            }.items()
        },
        head_dim=True,
        settings=_hunyuan,
    ),
}
