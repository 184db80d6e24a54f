"""Tables of architectures whose layers are Llama's, or nearly: what each says beside the common."""

import numpy as np
import pytest
from support.gguf.headers import LLAMA, facts, header

from scoremode.checkpoint.gguf.facts import rope_parameters
from scoremode.checkpoint.gguf.open import ARCHITECTURES, describe
from scoremode.errors import CheckpointError, UnsupportedModel

_EMBEDDING = {"token_embd.weight": (80, 64)}


def config(architecture, metadata=None, tensors=None):
    return describe(header(architecture, metadata, LLAMA if tensors is None else tensors)).config


def test_rows_move_where_llama_cpp_rotates_neighbours():
    moved = {"llama", "granite", "smollm3"}
    for architecture in ("llama", "qwen2", "qwen3", "granite", "smollm3"):
        said = {"logit_scale": 8.0} if architecture == "granite" else {}
        layouts = describe(header(architecture, said)).layouts
        assert len(layouts) == (2 if architecture in moved else 0), architecture


def test_biases_are_in_the_tensors():
    more = {"blk.0.attn_q.bias": (64,)}
    for architecture, field in (("qwen3", "attention_bias"), ("stablelm", "use_qkv_bias")):
        assert not config(architecture)[field]
        assert config(architecture, tensors=LLAMA | more)[field]


def test_granites_factors():
    said = {
        "logit_scale": 8.0,
        "embedding_scale": 12.0,
        "residual_scale": float(np.float32(0.22)),
        "attention.scale": 0.015625,
        "rope.scaling.finetuned": True,
    }
    found = config("granite", said)
    assert found["logits_scaling"] == 8.0
    assert (found["embedding_multiplier"], found["residual_multiplier"]) == (12.0, 0.22)
    assert found["attention_multiplier"] == 0.015625
    plain = config("granite", {"logit_scale": 8.0})
    assert (plain["embedding_multiplier"], plain["residual_multiplier"]) == (1.0, 1.0)
    assert plain["attention_multiplier"] == 0.25
    with pytest.raises(CheckpointError, match=r"no granite\.logit_scale"):
        config("granite")
    with pytest.raises(UnsupportedModel, match=r"rope\.scaling\.finetuned is False"):
        config("granite", said | {"rope.scaling.finetuned": False})


def test_phi_3s_window_and_original_length():
    found = config("phi3", {"attention.sliding_window": 2047}, _EMBEDDING)
    assert found["sliding_window"] == 2047
    assert found["original_max_position_embeddings"] == 128
    assert found["rope_parameters"]["partial_rotary_factor"] == 1.0
    assert config("phi3", {"attention.sliding_window": 0}, _EMBEDDING)["sliding_window"] is None


def test_phi_3s_longrope():
    factors = np.linspace(1, 2, 6)
    values = {"rope_factors_short.weight": factors, "rope_factors_long.weight": 2 * factors}
    said = {"rope.scaling.original_context_length": 32, "rope.dimension_count": 12}
    given = facts(said, values)
    given.config["rope_parameters"] = rope_parameters(given, 16, partial=True)
    given.config["max_position_embeddings"] = 128
    found = ARCHITECTURES["phi3"].settings(given)
    assert found["original_max_position_embeddings"] == 32


def test_olmo_3_is_olmo_2_with_windows():
    assert config("olmo2", tensors=_EMBEDDING)["model_type"] == "olmo2"
    pattern = np.array([True, False])
    said = {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": pattern,
        "block_count": 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    found = config("olmo2", said, _EMBEDDING)
    assert (found["model_type"], found["architectures"]) == ("olmo3", ["Olmo3ForCausalLM"])
    assert found["layer_types"] == ["sliding_attention", "full_attention"]
    assert found["rope_parameters"]["full_attention"]["rope_type"] == "yarn"
    assert found["rope_parameters"]["sliding_attention"]["rope_type"] == "default"


def test_coheres_scales():
    assert config("command-r", {"logit_scale": 0.0625}, _EMBEDDING)["logit_scale"] == 0.0625
    assert config("command-r", tensors=_EMBEDDING)["logit_scale"] == 1.0
    norms = {"blk.0.attn_q_norm.weight": (4, 16), "blk.0.attn_k_norm.weight": (2, 16)}
    assert config("command-r", tensors=_EMBEDDING | norms)["use_qk_norm"]
    said = {"logit_scale": 0.25, "attention.sliding_window": 16, "block_count": 5}
    found = config("cohere2", said, _EMBEDDING)
    assert found["layer_types"] == [
        *["sliding_attention"] * 3,
        "full_attention",
        "sliding_attention",
    ]
    with pytest.raises(UnsupportedModel, match=r"freq_base_swa is 5\.0: only 10000\.0"):
        config("cohere2", said | {"rope.freq_base_swa": 5.0}, _EMBEDDING)


def test_parallel_residuals_are_in_the_tensors():
    without = {name: shape for name, shape in LLAMA.items() if "ffn_norm" not in name}
    # The key says nothing: llama.cpp looks for the norm.
    said = {"use_parallel_residual": True, "rope.dimension_count": 4}
    assert config("stablelm", said, without)["use_parallel_residual"]
    found = config("stablelm", said)
    assert not found["use_parallel_residual"]
    assert found["rope_parameters"]["partial_rotary_factor"] == 0.25


def test_stablelms_norms_a_head_are_refused():
    more = {"blk.0.attn_q_norm.weight": (4, 16)}
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q_norm\.weight is none that"):
        config("stablelm", tensors=LLAMA | more)


def test_layers_that_rotate_nothing():
    assert config("smollm3", {"block_count": 5})["no_rope_layers"] == [1, 1, 1, 0, 1]
    assert config("exaone4", tensors=_EMBEDDING)["sliding_window"] is None
    large = config("exaone4", {"block_count": 64}, _EMBEDDING)
    assert (large["sliding_window"], large["layer_types"].count("full_attention")) == (4096, 16)
    said = {
        "block_count": 2,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": np.array([False, True]),
    }
    found = config("exaone4", said, _EMBEDDING)
    assert (found["sliding_window"], found["layer_types"][1]) == (8, "sliding_attention")


def test_mistral_3s_temperature():
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    scaled = yarn | {"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0}
    found = config("mistral3", scaled)
    assert found["model_type"] == "ministral3"
    assert found["rope_parameters"]["llama_4_scaling_beta"] == 0.1
    assert found["rope_parameters"]["mscale_all_dim"] == 1.0
    assert config("mistral3")["model_type"] == "llama"
    with pytest.raises(
        UnsupportedModel, match=r"temperature_scale 0\.1 and rope\.scaling\.yarn_log"
    ):
        config("mistral3", yarn | {"attention.temperature_scale": 0.1})


def test_olmos_norms_and_clip():
    said = {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 8.0}
    assert config("olmo", said)["clip_qkv"] == 8.0
    assert config("olmo")["clip_qkv"] is None
    with pytest.raises(UnsupportedModel, match=r"layer_norm_epsilon is 1e-06: only 1e-05"):
        config("olmo", {"attention.layer_norm_epsilon": 1e-6})


def test_biases_of_seed_oss():
    more = {"blk.0.attn_q.bias": (64,), "blk.0.attn_output.bias": (64,)}
    found = config("seed_oss", tensors=_EMBEDDING | more)
    assert (found["attention_bias"], found["attention_out_bias"]) == (True, True)
    assert not found["mlp_bias"]
