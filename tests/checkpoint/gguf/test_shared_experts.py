"""Ernie's layers that are mixtures, and Hunyuan's one width. Whole models: test_round_trip.py."""

import pytest
from support.gguf.headers import header

from scoremode.checkpoint.gguf.open import describe
from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import CheckpointError, UnsupportedModel

COMMON = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
ERNIE = COMMON | {"leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "block_count": 4}
HUNYUAN = COMMON | {"feed_forward_length": 32, "expert_shared_count": 1}
TABLE = {"token_embd.weight": (80, 64)}


def ernie(said, *mixed):
    routers = {f"blk.{n}.ffn_gate_inp.weight": (8, 64) for n in mixed}
    tensors = TABLE | routers | {"blk.1.exp_probs_b.bias": (8,)}
    return describe(header("ernie4_5-moe", ERNIE | said, tensors))


def test_ernies_mixtures_are_where_their_tensors_are():
    found = ernie({}, 1, 2)
    names = ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval")
    assert [found.config[name] for name in names] == [1, 2, 1]
    bias = "model.layers.1.mlp.gate.moe_statics.e_score_correction_bias"
    assert found.layouts == {bias: Layout(row=True)}
    assert ernie({"interleave_moe_layer_step": 2}, 1, 3).config["moe_layer_interval"] == 2
    for said, mixed in (
        ({}, (0, 1)),
        ({}, (1, 3)),
        ({"interleave_moe_layer_step": 2}, (1, 2)),
        ({"interleave_moe_layer_step": 0}, (1,)),
    ):
        with pytest.raises(CheckpointError, match="are mixtures, not each"):
            ernie(said, *mixed)


def test_hunyuans_experts_are_all_of_one_width():
    assert describe(header("hunyuan-moe", HUNYUAN, TABLE)).config["moe_topk"] == 2
    for said in (
        {"expert_shared_feed_forward_length": 64},
        {"expert_feed_forward_length": 64},
        {"expert_shared_count": 2},
        {"expert_weights_norm": False},
    ):
        (key,) = said
        with pytest.raises(UnsupportedModel, match=f"hunyuan-moe.{key} is"):
            describe(header("hunyuan-moe", HUNYUAN | said, TABLE))
