"""Gemma's tables: what no key says, windows, caps, and norms that are stored plus one."""

import pytest
from support.gguf.headers import LLAMA, header

from scoremode.checkpoint.gguf.open import describe
from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import UnsupportedModel

_EMBEDDING = {"token_embd.weight": (80, 64)}


def config(architecture, **metadata):
    said = {key.replace("__", "."): value for key, value in metadata.items()}
    return describe(header(architecture, said, _EMBEDDING)).config


def test_norms_are_stored_plus_one():
    layouts = describe(header("gemma")).layouts
    assert layouts == {
        "model.norm.weight": Layout(less=1.0),
        "model.layers.0.input_layernorm.weight": Layout(less=1.0),
        "model.layers.0.post_attention_layernorm.weight": Layout(less=1.0),
    }
    norms = ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")
    more = {f"blk.0.{name}.weight": (16,) for name in norms}
    assert len(describe(header("gemma3", tensors=LLAMA | more)).layouts) == 7


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_are_scaled_by_the_number_of_layers(architecture, layers):
    said = {"attention__key_length": 32, "attention__value_length": 32}
    assert config(architecture, **said)["query_pre_attn_scalar"] == 32
    # 27B: the hidden size by the number of heads.
    assert config(architecture, block_count=layers, **said)["query_pre_attn_scalar"] == 16


def test_gemma_2s_windows_and_caps():
    found = config("gemma2", block_count=3)
    assert found["sliding_window"] == 4096
    assert found["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (found["attn_logit_softcapping"], found["final_logit_softcapping"]) == (50.0, 30.0)
    found = config(
        "gemma2",
        attention__sliding_window=7,
        attn_logit_softcapping=20.0,
        final_logit_softcapping=10.0,
    )
    assert found["sliding_window"] == 7
    assert (found["attn_logit_softcapping"], found["final_logit_softcapping"]) == (20.0, 10.0)
    with pytest.raises(UnsupportedModel, match=r"freq_base_swa is 3\.0: only 10000\.0"):
        config("gemma2", rope__freq_base_swa=3.0)


def test_gemma_3s_two_rotations():
    said = {"attention__sliding_window": 512, "rope__freq_base": 1e6, "rope__scaling__factor": 8.0}
    found = config("gemma3", block_count=7, rope__scaling__type="linear", **said)
    assert found["layer_types"] == [
        *["sliding_attention"] * 5,
        "full_attention",
        "sliding_attention",
    ]
    assert found["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert found["final_logit_softcapping"] is None
    local = config("gemma3", rope__freq_base_swa=5.0, **said)["rope_parameters"]
    assert local["sliding_attention"]["rope_theta"] == 5.0
    assert config("gemma3", block_count=2)["layer_types"] == ["full_attention"] * 2
    assert config("gemma3", final_logit_softcapping=30.0)["final_logit_softcapping"] == 30.0
