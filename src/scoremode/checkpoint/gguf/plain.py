"""Architectures without a gate: GPT-2's, Falcon's and their like, with norms that have a bias.

Source: as for `dense.py`. Which function lies between an MLP's halves no file says: it is the one of
the models known.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, flag, integer, real
from scoremode.checkpoint.gguf.table import (
    ATTENTION,
    LLAMA,
    MODEL,
    NORMS,
    RMS,
    SIZES,
    TURNS,
    Architecture,
    Layout,
)

_STARCODER2 = (
    MODEL
    | ATTENTION
    | {
        "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
        "blk.*.ffn_up": "model.layers.*.mlp.c_fc",
        "blk.*.ffn_down": "model.layers.*.mlp.c_proj",
    }
)
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.*.attn_norm": "transformer.h.*.ln_1",
    "blk.*.attn_qkv": "transformer.h.*.attn.c_attn",
    "blk.*.attn_output": "transformer.h.*.attn.c_proj",
    "blk.*.ffn_norm": "transformer.h.*.ln_2",
    "blk.*.ffn_up": "transformer.h.*.mlp.c_fc",
    "blk.*.ffn_down": "transformer.h.*.mlp.c_proj",
}
_FALCON = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.*.attn_qkv": "transformer.h.*.self_attention.query_key_value",
    "blk.*.attn_output": "transformer.h.*.self_attention.dense",
    "blk.*.ffn_up": "transformer.h.*.mlp.dense_h_to_4h",
    "blk.*.ffn_down": "transformer.h.*.mlp.dense_4h_to_h",
}
_BLOOM = _FALCON | {
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "blk.*.attn_norm": "transformer.h.*.input_layernorm",
    "blk.*.ffn_norm": "transformer.h.*.post_attention_layernorm",
}
_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk.*.attn_norm": "gpt_neox.layers.*.input_layernorm",
    "blk.*.attn_qkv": "gpt_neox.layers.*.attention.query_key_value",
    "blk.*.attn_output": "gpt_neox.layers.*.attention.dense",
    "blk.*.ffn_norm": "gpt_neox.layers.*.post_attention_layernorm",
    "blk.*.ffn_up": "gpt_neox.layers.*.mlp.dense_h_to_4h",
    "blk.*.ffn_down": "gpt_neox.layers.*.mlp.dense_4h_to_h",
}
_PHI2 = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.final_layernorm",
    "output": "lm_head",
    "blk.*.attn_norm": "model.layers.*.input_layernorm",
    "blk.*.attn_q": "model.layers.*.self_attn.q_proj",
    "blk.*.attn_k": "model.layers.*.self_attn.k_proj",
    "blk.*.attn_v": "model.layers.*.self_attn.v_proj",
    "blk.*.attn_output": "model.layers.*.self_attn.dense",
    "blk.*.ffn_up": "model.layers.*.mlp.fc1",
    "blk.*.ffn_down": "model.layers.*.mlp.fc2",
}
# Llama's names, without its gate.
_UNGATED = {name: module for name, module in LLAMA.items() if name != "blk.*.ffn_gate"}
_EPSILON = {"layer_norm_epsilon": real("attention.layer_norm_epsilon")}
_GPT2_SIZES = {
    "n_positions": integer("context_length"),
    "n_embd": integer("embedding_length"),
    "n_inner": integer("feed_forward_length"),
    "n_layer": integer("block_count"),
    "n_head": integer("attention.head_count"),
}


def _transposed(config: Mapping[str, Any]) -> Layout:
    return Layout(transposed=True)


def _each_head(config: Mapping[str, Any]) -> Layout:
    """The layout of models whose queries, keys and values lie head by head."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    assert isinstance(heads, int)
    return Layout(groups=heads, head_dim=config["hidden_size"] // heads)


def _each_group(config: Mapping[str, Any]) -> Layout:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return Layout(groups=config["num_kv_heads"], head_dim=head_dim)


def _starcoder2(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": facts.has("attn_q.bias"),
        "sliding_window": None,
    }


def _gpt2(facts: Facts) -> dict[str, Any]:
    return {
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }


def _falcon_names(facts: Facts) -> dict[str, str]:
    if facts.has("attn_norm_2.weight"):
        return _FALCON | {
            "blk.*.attn_norm": "transformer.h.*.ln_mlp",
            "blk.*.attn_norm_2": "transformer.h.*.ln_attn",
        }
    return _FALCON | {"blk.*.attn_norm": "transformer.h.*.input_layernorm"}


def _falcon(facts: Facts) -> dict[str, Any]:
    """The old decoder is the one of a single key and norm (7B); Falcon 2 has the new one's keys."""
    norms = 2 if facts.has("attn_norm_2.weight") else 1
    new = norms == 2 or facts.config["num_kv_heads"] > 1
    return {
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": norms if new else None,
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "bias": facts.has("attn_qkv.bias"),
        "activation": "gelu",
    }


def _bloom(facts: Facts) -> dict[str, Any]:
    facts.expect(integer("feed_forward_length"), 4 * facts.config["hidden_size"])
    return {"apply_residual_connection_post_layernorm": False}


def _neox(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_act": "gelu",
        "use_parallel_residual": facts.get(flag("use_parallel_residual")),
        "attention_bias": facts.has("attn_qkv.bias"),
    }


def _phi2(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "gelu_new", "qk_layernorm": False}


def _plus_one(config: Mapping[str, Any]) -> Layout:
    return Layout(less=1.0)


def _relu2(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_act": "relu2",
        "attention_bias": facts.has("attn_q.bias"),
        "mlp_bias": facts.has("ffn_up.bias"),
    }


def _starcoder(facts: Facts) -> dict[str, Any]:
    facts.expect(integer("attention.head_count_kv"), 1)
    return {
        "activation_function": "gelu_pytorch_tanh",
        "scale_attn_weights": True,
        "multi_query": True,
    }


PLAIN = {
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        SIZES | {"norm_epsilon": real("attention.layer_norm_epsilon")},
        _STARCODER2,
        settings=_starcoder2,
    ),
    "gpt2": Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        _GPT2_SIZES | _EPSILON,
        _GPT2,
        {
            "blk.*.attn_qkv.weight": _transposed,
            "blk.*.attn_output.weight": _transposed,
            "blk.*.ffn_up.weight": _transposed,
            "blk.*.ffn_down.weight": _transposed,
        },
        rope=False,
        settings=_gpt2,
    ),
    "falcon": Architecture(
        "falcon",
        "FalconForCausalLM",
        {
            "max_position_embeddings": integer("context_length"),
            "hidden_size": integer("embedding_length"),
            "ffn_hidden_size": integer("feed_forward_length"),
            "num_hidden_layers": integer("block_count"),
            "num_attention_heads": integer("attention.head_count"),
        }
        | _EPSILON,
        _falcon_names,
        {"blk.*.attn_qkv": _each_group},
        keys="num_kv_heads",
        settings=_falcon,
    ),
    "bloom": Architecture(
        "bloom",
        "BloomForCausalLM",
        {
            "hidden_size": integer("embedding_length"),
            "n_layer": integer("block_count"),
            "n_head": integer("attention.head_count"),
        }
        | _EPSILON,
        _BLOOM,
        {"blk.*.attn_qkv": _each_head},
        rope=False,
        settings=_bloom,
    ),
    "gptneox": Architecture(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        NORMS,
        _NEOX,
        {"blk.*.attn_qkv": _each_head},
        partial=True,
        settings=_neox,
    ),
    # Norms are stored plus the one that the library adds, their biases as they are.
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        SIZES | {"norm_eps": real("attention.layer_norm_epsilon")},
        _UNGATED,
        {f"{name}.weight": _plus_one for name in _UNGATED if name.endswith("_norm")},
        head_dim=True,
        partial=True,
        settings=_relu2,
        ignored=frozenset(("attention.layer_norm_rms_epsilon",)),
    ),
    "jais2": Architecture(
        "jais2", "Jais2ForCausalLM", NORMS, _UNGATED, head_dim=True, settings=_relu2
    ),
    "arcee": Architecture(
        "arcee", "ArceeForCausalLM", RMS, _UNGATED, TURNS, head_dim=True, settings=_relu2
    ),
    "starcoder": Architecture(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        _GPT2_SIZES | _EPSILON,
        _GPT2,
        rope=False,
        settings=_starcoder,
    ),
    "phi2": Architecture("phi", "PhiForCausalLM", NORMS, _PHI2, partial=True, settings=_phi2),
}
