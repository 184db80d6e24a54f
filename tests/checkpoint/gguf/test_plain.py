"""Tables of architectures without a gate: transposed weights, fused projections, Falcon's decoders."""

import pytest
from support.gguf.headers import header

from scoremode.checkpoint.gguf.open import describe
from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import UnsupportedModel

_EMBEDDING = {"token_embd.weight": (80, 64)}
_QKV = _EMBEDDING | {"blk.0.attn_qkv.weight": (128, 64), "blk.0.attn_qkv.bias": (128,)}


def test_gpt_2s_weights_are_transposed_and_its_biases_are_not():
    found = describe(header("gpt2", {"attention.head_count_kv": None}, _QKV))
    assert found.layouts == {"transformer.h.0.attn.c_attn.weight": Layout(transposed=True)}
    assert found.config["n_inner"] == 96 and found.config["n_positions"] == 128
    assert "rope_parameters" not in found.config


def test_falcons_decoders():
    def of(heads, norms):
        more = {f"blk.0.{norm}.weight": (64,) for norm in norms}
        found = describe(header("falcon", {"attention.head_count_kv": heads}, _QKV | more))
        return found.config, found.names, found.layouts

    config, names, layouts = of(1, ["attn_norm"])
    assert not config["new_decoder_architecture"] and config["bias"]
    assert names["blk.0.attn_norm.weight"] == "transformer.h.0.input_layernorm.weight"
    fused = "transformer.h.0.self_attention.query_key_value.weight"
    assert layouts[fused] == Layout(groups=1, head_dim=16)
    config, names, layouts = of(2, ["attn_norm", "attn_norm_2"])
    assert config["new_decoder_architecture"] and config["num_ln_in_parallel_attn"] == 2
    assert names["blk.0.attn_norm.weight"] == "transformer.h.0.ln_mlp.weight"
    assert names["blk.0.attn_norm_2.weight"] == "transformer.h.0.ln_attn.weight"
    assert layouts[fused] == Layout(groups=2, head_dim=16)
    # Falcon 2's.
    config, names, _ = of(2, ["attn_norm"])
    assert config["new_decoder_architecture"] and config["num_ln_in_parallel_attn"] == 1
    assert names["blk.0.attn_norm.weight"] == "transformer.h.0.input_layernorm.weight"


def test_heads_that_lie_each_with_its_own_key_and_value():
    said = {"feed_forward_length": 256}
    bloom = describe(header("bloom", said, _QKV)).layouts
    assert set(bloom.values()) == {Layout(groups=4, head_dim=16)}
    assert len(bloom) == 2, "the weight and the bias"
    with pytest.raises(UnsupportedModel, match=r"feed_forward_length is 96: only 256"):
        describe(header("bloom", tensors=_QKV))


def test_what_neox_says_of_its_residuals():
    for parallel in (True, False):
        config = describe(header("gptneox", {"use_parallel_residual": parallel}, _QKV)).config
        assert config["use_parallel_residual"] == parallel
        assert config["attention_bias"]


def test_starcoder_2s_biases():
    assert not describe(header("starcoder2", tensors=_EMBEDDING)).config["use_bias"]


def test_nemotrons_norms_are_stored_plus_one_and_their_biases_are_not():
    norms = {f"blk.0.attn_norm.{suffix}": (64,) for suffix in ("weight", "bias")}
    found = describe(header("nemotron", tensors=_EMBEDDING | norms))
    assert found.layouts == {"model.layers.0.input_layernorm.weight": Layout(less=1.0)}
    assert found.config["hidden_act"] == "relu2"


def test_starcoders_one_key():
    assert describe(header("starcoder", {"attention.head_count_kv": 1}, _QKV)).layouts == {}
    with pytest.raises(UnsupportedModel, match=r"head_count_kv is 2: only 1"):
        describe(header("starcoder", tensors=_QKV))
