"""Mixtures of experts: what files say of routers, against what each architecture does. Whole models:
test_round_trip.py."""

import numpy as np
import pytest
from support.gguf.headers import header

from scoremode.checkpoint.gguf.mixtures import MIXTURES
from scoremode.checkpoint.gguf.open import describe
from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import CheckpointError, UnsupportedModel

EXPERTS = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 48,
    "expert_shared_count": 1,
    "attention.sliding_window": 7,
    "feed_forward_length": 32,
}
TENSORS = {"token_embd.weight": (80, 64), "blk.0.ffn_gate_inp.weight": (8, 64)}
# Keys of EXPERTS that an architecture has no use for.
NOT_OF = {
    "expert_feed_forward_length": ("llama", "olmoe", "granitemoe"),
    "expert_shared_feed_forward_length": tuple(set(MIXTURES) - {"qwen2moe"}),
    "expert_shared_count": tuple(set(MIXTURES) - {"glm4moe"}),
    "attention.sliding_window": tuple(set(MIXTURES) - {"gpt-oss"}),
}


def described(architecture, said=None, tensors=None):
    known = EXPERTS | ({"logit_scale": 6.0} if architecture == "granitemoe" else {})
    own = {key: value for key, value in known.items() if architecture not in NOT_OF.get(key, ())}
    return describe(header(architecture, own | (said or {}), TENSORS | (tensors or {})))


@pytest.mark.parametrize("architecture", MIXTURES)
def test_experts_are_stored_as_one(architecture):
    names = described(architecture, tensors={"blk.0.ffn_up_exps.weight": (8, 32, 64)}).names
    home = "block_sparse_moe" if architecture == "granitemoe" else "mlp"
    router = "router" if architecture in ("granitemoe", "gpt-oss") else "gate"
    assert names["blk.0.ffn_gate_inp.weight"] == f"model.layers.0.{home}.{router}.weight"
    assert names["blk.0.ffn_up_exps.weight"] == f"model.layers.0.{home}.experts.up_proj.weight"


@pytest.mark.parametrize("architecture", MIXTURES)
def test_more_experts_a_token_than_there_are(architecture):
    for used in (0, 9):
        with pytest.raises(
            CheckpointError, match=f"{architecture}.expert_used_count is {used}, of 8"
        ):
            described(architecture, {"expert_used_count": used})


@pytest.mark.parametrize("architecture", sorted(set(MIXTURES) - {"glm4moe"}))
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_gating_func", 2),
        ("expert_weights_scale", 2.5),
        ("expert_group_count", 4),
        ("expert_shared_feed_forward_length", None),
        ("unheard_of", 1),
    ],
)
def test_routers_that_the_architecture_has_not(architecture, key, value):
    if value is None:
        value = None if architecture == "qwen2moe" else 48
    with pytest.raises((UnsupportedModel, CheckpointError), match=f"{architecture}.{key}"):
        described(architecture, {key: value})


def test_norms_of_routers_weights():
    assert described("qwen3moe", {"expert_weights_norm": True}).config["norm_topk_prob"]
    assert not described("qwen2moe", {"expert_weights_norm": False}).config["norm_topk_prob"]
    for architecture, norm in (("qwen3moe", False), ("qwen2moe", True), ("olmoe", True)):
        with pytest.raises(UnsupportedModel, match=f"expert_weights_norm is {norm}"):
            described(architecture, {"expert_weights_norm": norm})


def test_a_shared_expert_of_no_width_is_none():
    # As Qwen3-Coder's files have it.
    found = described("qwen3moe", {"expert_shared_feed_forward_length": 0}).config
    assert found == described("qwen3moe").config


def test_mixtral_is_called_llama():
    found = described("llama")
    assert found.config["model_type"] == "mixtral" and found.config["sliding_window"] is None
    with pytest.raises(UnsupportedModel, match="'qwen3' with 8 experts is not supported"):
        describe(header("qwen3", {"expert_count": 8}))


def test_a_shared_experts_gate_is_a_row():
    found = described("qwen2moe", tensors={"blk.0.ffn_gate_inp_shexp.weight": (64,)})
    name = "model.layers.0.mlp.shared_expert_gate.weight"
    assert found.names["blk.0.ffn_gate_inp_shexp.weight"] == name
    assert found.layouts == {name: Layout(row=True)}


def test_gpt_oss():
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0}
    found = described("gpt-oss", yarn | {"block_count": 3}).config
    assert found["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert found["sliding_window"] == 7 and found["rope_parameters"]["truncate"] is False
    for said, words in (
        ({"attention.sliding_window_pattern": 4}, "sliding_window_pattern is 4"),
        ({"rope.freq_base_swa": 5e5}, "freq_base_swa is 500000.0"),
    ):
        with pytest.raises(UnsupportedModel, match=words):
            described("gpt-oss", said)
    with pytest.raises(CheckpointError, match=r"attention\.sliding_window is 0"):
        described("gpt-oss", {"attention.sliding_window": 0})
    with pytest.raises(CheckpointError, match="feed_forward_length is not expert_feed"):
        described("gpt-oss", {"feed_forward_length": 96})


def test_granite_multiplies():
    said = {"attention.scale": 0.5, "embedding_scale": 12.0, "residual_scale": 0.25}
    config = described("granitemoe", said | {"logit_scale": 6.0}).config
    names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier")
    assert [config[name] for name in (*names, "logits_scaling")] == [0.5, 12.0, 0.25, 6.0]
    assert described("granitemoe").config["attention_multiplier"] == 0.25
    none = dict.fromkeys(said, 0.0)
    config = described("granitemoe", none).config
    assert [config[name] for name in names] == [0.25, 1.0, 1.0]


def test_glm():
    said = {
        "expert_weights_norm": True,
        "expert_weights_scale": float(np.float32(2.6)),
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "leading_dense_block_count": 1,
        "nextn_predict_layers": 1,
        "block_count": 3,
    }
    found = described("glm4moe", said, {"blk.2.nextn.eh_proj.weight": (64, 128)})
    config = found.config
    assert config["num_hidden_layers"] == 2 and config["first_k_dense_replace"] == 1
    assert config["norm_topk_prob"] and config["routed_scaling_factor"] == 2.6
    assert found.names["blk.2.nextn.eh_proj.weight"] == "model.layers.2.eh_proj.weight"
    assert not described("glm4moe").config["norm_topk_prob"]
    # 0 is what llama.cpp has for a file that says nothing.
    unsaid = described("glm4moe", {"expert_weights_scale": 0.0, "expert_gating_func": 0})
    assert unsaid.config == described("glm4moe").config
    assert unsaid.config["routed_scaling_factor"] == 1.0
    with pytest.raises(UnsupportedModel, match=r"glm4moe\.expert_gating_func is 1"):
        described("glm4moe", {"expert_gating_func": 1})
    with pytest.raises(CheckpointError, match="nextn_predict_layers leaves no layer"):
        described("glm4moe", {"nextn_predict_layers": 1})


@pytest.mark.parametrize(
    ("groups", "used", "chosen"), [(3, 1, 2), (2, 3, 2), (8, 4, 2), (-1, 1, 2), (4, 1, 3)]
)
def test_groups_that_the_library_can_not_choose_from(groups, used, chosen):
    said = {
        "expert_group_count": groups,
        "expert_group_used_count": used,
        "expert_used_count": chosen,
    }
    words = f"expert_group_used_count is {used} of {groups} groups, for {chosen} of 8 experts"
    with pytest.raises(CheckpointError, match=words):
        described("glm4moe", said)
    found = described("glm4moe", said | {"expert_group_count": 4, "expert_group_used_count": 2})
    assert found.config["n_group"] == 4 and found.config["topk_group"] == 2
