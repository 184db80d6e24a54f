"""DeepSeek's sizes, groups and yarn, as files of several years say them. Whole models:
test_round_trip.py."""

import pytest
from support.gguf.headers import header

from scoremode.checkpoint.gguf.open import describe
from scoremode.errors import CheckpointError, UnsupportedModel

LITE = {
    "attention.head_count_kv": 1,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 20,
    "attention.kv_lora_rank": 32,
    "rope.dimension_count": 8,
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "block_count": 2,
}
GROUPS = {
    "attention.q_lora_rank": 48,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
V3 = GROUPS | {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 40.0}


def config(said=None):
    return describe(
        header("deepseek2", LITE | (said or {}), {"token_embd.weight": (80, 64)})
    ).config


def test_v2_lite():
    found = config()
    expected = {
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 20,
        "first_k_dense_replace": 1,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "n_group": 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_v2():
    found = config(GROUPS | {"expert_weights_scale": 16.0})
    assert found["topk_method"] == "group_limited_greedy" and found["q_lora_rank"] == 48
    assert (found["n_group"], found["topk_group"]) == (4, 2)
    assert found["routed_scaling_factor"] == 16


def test_v3():
    found = config(V3)
    assert found["model_type"] == "deepseek_v3" and found["norm_topk_prob"]
    assert found["architectures"] == ["DeepseekV3ForCausalLM"] and found["rope_interleave"]
    assert found["routed_scaling_factor"] == 2.5
    assert config(V3 | {"nextn_predict_layers": 1})["num_hidden_layers"] == 1


def test_heads_of_files_before_the_split():
    """Heads as the library has them, and `attn_kv_b` whole."""
    old = {
        "attention.head_count_kv": 4,
        "attention.key_length": 24,
        "attention.value_length": 20,
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }
    assert config(old) == config()
    with pytest.raises(CheckpointError, match=r"attention\.head_count_kv is 1: not 4"):
        config(old | {"attention.head_count_kv": 1})
    for said in ({"attention.key_length": 24}, {"attention.head_count_kv": 4}):
        with pytest.raises(CheckpointError, match="not those of a latent of 32"):
            config(said)
    with pytest.raises(CheckpointError, match="64 values of a head of 24 rotate"):
        config({"rope.dimension_count": 64, "attention.key_length": 96})


def test_yarn_scales_the_attention():
    found = config(YARN | {"rope.scaling.yarn_log_multiplier": 0.0707})["rope_parameters"]
    assert (found["mscale"], found["mscale_all_dim"], found["factor"]) == (0.707, 0.707, 40)
    with pytest.raises(UnsupportedModel, match="yarn_log_multiplier is not there"):
        config(YARN)
    more = {"rope.scaling.yarn_log_multiplier": 0.1, "rope.scaling.attn_factor": 0.5}
    with pytest.raises(
        UnsupportedModel, match=r"yarn_log_multiplier is 0\.1 beside an attn_factor"
    ):
        config(YARN | more)
    with pytest.raises(UnsupportedModel, match="scaled by linear"):
        config({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"expert_gating_func": 4}, UnsupportedModel, "expert_gating_func is 4"),
        ({"expert_weights_norm": True}, UnsupportedModel, "expert_weights_norm is true"),
        ({"attention.q_lora_rank": 48}, UnsupportedModel, "no deepseek2.expert_group_count"),
        ({"expert_group_count": 3}, CheckpointError, "is 1 of 3 groups, for . of 8 experts"),
        (GROUPS | {"expert_group_used_count": 5}, CheckpointError, "5 of 4 groups"),
        ({"expert_used_count": 9}, CheckpointError, "expert_used_count is 9"),
        ({"nextn_predict_layers": 2}, CheckpointError, "leaves no layer"),
        ({"attention.temperature_scale": 0.1}, UnsupportedModel, "temperature_scale"),
        ({"expert_count": 0}, UnsupportedModel, "'deepseek2' is not supported"),
    ],
)
def test_what_is_refused(said, error, words):
    with pytest.raises(error, match=words):
        config(said)
