"""Architectures whose layers are Llama's, or nearly.

Source of each: llama.cpp's `conversion/` for what is written, `src/models/` for what is read, and
`gguf-py/gguf/tensor_mapping.py` for names; transformers' configuration for fields.
"""

from typing import Any

from scoremode.checkpoint.gguf.facts import Facts
from scoremode.checkpoint.gguf.table import ATTENTION, GATED, MODEL, RMS, TURNS, Architecture

__all__ = ["DENSE"]

_LLAMA = MODEL | ATTENTION | GATED
_QK_NORMS = {
    "blk.*.attn_q_norm": "model.layers.*.self_attn.q_norm",
    "blk.*.attn_k_norm": "model.layers.*.self_attn.k_norm",
}


def _silu(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "silu"}


def _llama(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "attention_bias": facts.has("attn_q.bias"),
        "mlp_bias": facts.has("ffn_up.bias"),
    }


def _qwen3(facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "silu", "attention_bias": facts.has("attn_q.bias")}


# By `general.architecture`.
DENSE = {
    # Mistral's too, which has no name of its own there, and whose sliding window no file says.
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        RMS,
        _LLAMA,
        TURNS,
        head_dim=True,
        settings=_llama,
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", RMS, _LLAMA, settings=_silu),
    "qwen3": Architecture(
        "qwen3", "Qwen3ForCausalLM", RMS, _LLAMA | _QK_NORMS, head_dim=True, settings=_qwen3
    ),
}
