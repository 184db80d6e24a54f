"""Gemma's architectures, whose norms are stored plus the one that the library adds.

Source: as for `dense.py`. What attention scores are scaled by is no key: llama.cpp, and so all that is
known of a file, takes the number of layers for it, the largest model being the one that differs.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.gguf.facts import Facts, real
from scoremode.checkpoint.gguf.layout import Layout
from scoremode.checkpoint.gguf.table import LLAMA, QK_NORMS, RMS, Architecture, layer_types, window

__all__ = ["GEMMA"]

# Of the 27B models of each generation.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
_FOUR_NORMS = LLAMA | {
    "blk.*.post_attention_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.ffn_norm": "model.layers.*.pre_feedforward_layernorm",
    "blk.*.post_ffw_norm": "model.layers.*.post_feedforward_layernorm",
}


def _plus_one(config: Mapping[str, Any]) -> Layout:
    return Layout(less=1.0)


def _norms(names: Mapping[str, str]) -> dict[str, Any]:
    return {name: _plus_one for name in names if name.endswith("_norm")}


def _gemma(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False}


def _newer(facts: Facts) -> dict[str, Any]:
    """What Gemma 2 and 3 share."""
    of_27b = facts.layers == _LAYERS_OF_27B[facts.architecture]
    config = facts.config
    shared = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": shared if of_27b else config["head_dim"],
    }


def _gemma2(facts: Facts) -> dict[str, Any]:
    theta = facts.config["rope_parameters"]["rope_theta"]
    facts.expect(real("rope.freq_base_swa"), theta)
    return _newer(facts) | {
        "sliding_window": window(facts, 4096),
        "layer_types": layer_types(facts, 2),
        "attn_logit_softcapping": facts.get(real("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": facts.get(real("final_logit_softcapping", 30.0)),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    """Layers with a window rotate by a base of their own, and without scaling."""
    size = window(facts, 0)
    types = layer_types(facts, 6) if size else ["full_attention"] * facts.layers
    local = facts.get(real("rope.freq_base_swa", 10000.0))
    return _newer(facts) | {
        # One that no layer has is a number all the same.
        "sliding_window": size or 4096,
        "layer_types": types,
        "rope_parameters": {
            "full_attention": facts.config["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "attn_logit_softcapping": None,
        "final_logit_softcapping": facts.get(real("final_logit_softcapping", 0.0)) or None,
        "use_bidirectional_attention": False,
    }


GEMMA = {
    "gemma": Architecture(
        "gemma",
        "GemmaForCausalLM",
        RMS,
        LLAMA,
        _norms(LLAMA),
        head_dim=True,
        settings=_gemma,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        RMS,
        _FOUR_NORMS,
        _norms(_FOUR_NORMS),
        head_dim=True,
        settings=_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        RMS,
        _FOUR_NORMS | QK_NORMS,
        _norms(_FOUR_NORMS | QK_NORMS),
        head_dim=True,
        settings=_gemma3,
        # How many tokens an image is.
        ignored=frozenset(("mm.tokens_per_image",)),
    ),
}
