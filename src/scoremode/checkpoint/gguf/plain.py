"""Architectures without a gate: GPT-2's, Falcon's and their like, with norms that have a bias.

Source: as for `dense.py`. Which function lies between an MLP's halves no file says: it is the one of
the models known.
"""

from collections.abc import Callable, Mapping
from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, flag, integer, real
from scoremode.checkpoint.gguf.table import (
    ATTENTION,
    BIASES,
    LAYER,
    LLAMA,
    MODEL,
    NORMS,
    RMS,
    SIZES,
    TURNS,
    Architecture,
    Layout,
    blocks,
    plus_one,
)

_STARCODER2 = (
    MODEL
    | ATTENTION
    | blocks(
        LAYER,
        {"ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    )
)
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **blocks(
        "transformer.h.*",
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
    ),
}
_DENSE_H = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
_TWO_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_FALCON = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **blocks(
        "transformer.h.*",
        _DENSE_H
        | {
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
        },
    ),
}
_BLOOM = _FALCON | {
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    **blocks("transformer.h.*", _TWO_NORMS),
}
_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    **blocks(
        "gpt_neox.layers.*",
        _TWO_NORMS
        | _DENSE_H
        | {"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense"},
    ),
}
_PHI2 = {
    **MODEL,
    "output_norm": "model.final_layernorm",
    **{name: module for name, module in ATTENTION.items() if name != "blk.*.attn_output"},
    **blocks(LAYER, {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}),
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
    **_EPSILON,
}
_RELU2 = {"hidden_act": "relu2"}


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
    }


def _expecting(key: str, value: Callable[[Mapping[str, Any]], int]) -> Callable[[Facts], Any]:
    """Settings that add nothing, of an architecture in which `key` has one value, by the config."""

    def settings(facts: Facts) -> dict[str, Any]:
        facts.expect(integer(key), value(facts.config))
        return {}

    return settings


PLAIN = {
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        SIZES | {"norm_epsilon": real("attention.layer_norm_epsilon")},
        _STARCODER2,
        constants={"hidden_act": "gelu_pytorch_tanh", "sliding_window": None},
        biases={"use_bias": "attn_q.bias"},
    ),
    "gpt2": Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        _GPT2_SIZES,
        _GPT2,
        {
            f"blk.*.{name}.weight": _transposed
            for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
        },
        rope=False,
        constants={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
        },
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
            **_EPSILON,
        },
        _falcon_names,
        {"blk.*.attn_qkv": _each_group},
        keys="num_kv_heads",
        constants={
            "multi_query": True,
            "parallel_attn": True,
            "alibi": False,
            "activation": "gelu",
        },
        biases={"bias": "attn_qkv.bias"},
        settings=_falcon,
    ),
    "bloom": Architecture(
        "bloom",
        "BloomForCausalLM",
        {
            "hidden_size": integer("embedding_length"),
            "n_layer": integer("block_count"),
            "n_head": integer("attention.head_count"),
            **_EPSILON,
        },
        _BLOOM,
        {"blk.*.attn_qkv": _each_head},
        rope=False,
        constants={"apply_residual_connection_post_layernorm": False},
        settings=_expecting("feed_forward_length", lambda config: 4 * config["hidden_size"]),
    ),
    "gptneox": Architecture(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        NORMS | {"use_parallel_residual": flag("use_parallel_residual")},
        _NEOX,
        {"blk.*.attn_qkv": _each_head},
        partial=True,
        constants={"hidden_act": "gelu"},
        biases={"attention_bias": "attn_qkv.bias"},
    ),
    # Of its norms the weights alone are stored plus one, not the biases.
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        SIZES | {"norm_eps": real("attention.layer_norm_epsilon")},
        _UNGATED,
        {f"{name}.weight": layout for name, layout in plus_one(_UNGATED).items()},
        head_dim=True,
        partial=True,
        constants=_RELU2,
        biases=BIASES,
        ignored=frozenset(("attention.layer_norm_rms_epsilon",)),
    ),
    "jais2": Architecture(
        "jais2",
        "Jais2ForCausalLM",
        NORMS,
        _UNGATED,
        head_dim=True,
        constants=_RELU2,
        biases=BIASES,
    ),
    "arcee": Architecture(
        "arcee",
        "ArceeForCausalLM",
        RMS,
        _UNGATED,
        TURNS,
        head_dim=True,
        constants=_RELU2,
        biases=BIASES,
    ),
    "starcoder": Architecture(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        _GPT2_SIZES,
        _GPT2,
        rope=False,
        constants={
            "activation_function": "gelu_pytorch_tanh",
            "scale_attn_weights": True,
            "multi_query": True,
        },
        settings=_expecting("attention.head_count_kv", lambda _: 1),
    ),
    "phi2": Architecture(
        "phi",
        "PhiForCausalLM",
        NORMS,
        _PHI2,
        partial=True,
        constants={"hidden_act": "gelu_new", "qk_layernorm": False},
    ),
}
