"""Attention of long windows without a mask, or scores, of every pair of positions.

transformers gives torch's attention a mask of truth values where a layer's tokens see the last few
thousand others alone: 16 GiB of it at 128k tokens, and twice as much once it is numbers. Here a block
of queries is attended with the keys that it can see, under a mask of that size. Layers that see all
tokens before go to the library's function as ever; on a CPU with values as wide as keys, where they are
narrower (DeepSeek's): torch has no other kernel there that holds no scores.
"""

import inspect
import re
import sys
from typing import Any

import torch
from torch.nn import functional

__all__ = [
    "APART",
    "attend",
    "attend_apart",
    "block_of",
    "has_narrow_values",
    "may_attend_apart",
    "slides",
]

APART = "attention without masks, sliding by blocks"
_REGISTERED = "scoremode_long"
# Queries of a block, where windows are narrower; a block of as many as a window sees is fastest.
_LEAST_BLOCK = 1024
# What the library hands its attention functions; nothing else is known here.
_KNOWN = {"sliding_window", "is_causal", "position_ids", "use_cache", "cache_position",
          "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
          "cache", "past_key_values"}  # fmt: skip
# How the library's models say how far a layer's tokens see: to an attention function, and in a mask.
_TOLD, _MASKED = re.compile(r"\bsliding_window="), "create_sliding_window_causal_mask"


def may_attend_apart(model: Any, attention: str) -> bool:
    """Tells whether each layer of a model says by `sliding_window` alone what it sees: so it must for
    the flash kernels that the library runs it with, which take no other mask. Some don't all the same:
    Phi-3.5-MoE and Qwen2-MoE have a sliding mask and don't tell their attention, and OLMoE tells it
    of a window that its mask knows nothing of."""
    known = getattr(model, "_supports_flash_attn", False) and model._supports_attention_backend
    if attention != "sdpa" or not known:
        return False
    source = inspect.getsource(sys.modules[type(model).__module__])
    return not slides(model.config) or (_MASKED in source and _TOLD.search(source) is not None)


def has_narrow_values(config: Any, device: torch.device) -> bool:
    """Tells whether no kernel of a device takes the model's heads."""
    return device.type == "cpu" and getattr(config, "kv_lora_rank", None) is not None


def slides(config: Any) -> bool:
    """Tells whether some layers attend to fewer tokens than there are before."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return any("sliding" in kind or "chunked" in kind for kind in kinds)
    return getattr(config, "sliding_window", None) is not None


def block_of(sliding_window: int) -> tuple[int, int]:
    """Queries of a block, and the most keys that it can see."""
    queries = max(_LEAST_BLOCK, sliding_window)
    return queries, queries + sliding_window - 1


def attend_apart(model: Any, instead: str | None = None) -> None:
    """Has the model attend by `attend` from now on, without masks; or again as the library knows it,
    `instead`."""
    if instead is not None:
        model.set_attn_implementation(instead)
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(_REGISTERED, attend)
    AttentionMaskInterface.register(_REGISTERED, flash_attention_mask)
    model.set_attn_implementation(_REGISTERED)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention as transformers calls it: queries [B, H, T, d], keys and values [B, K, T, d] →
    [B, T, H, d'].

    With a `sliding_window` a token sees that many, itself included.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_causal = kwargs.get("is_causal") is not False
    assert attention_mask is None and is_causal and not dropout, "only causal masks are known"
    others = {name for name, given in kwargs.items() if given is not None} - _KNOWN
    assert not others, f"attention is given {', '.join(sorted(others))}, which is not known here"
    length, width = query.shape[2], value.shape[-1]
    if query.device.type == "cpu" and width < query.shape[-1]:
        value = functional.pad(value, (0, query.shape[-1] - width))
        out, _ = attend(
            module, query, key, value, None, scaling=scaling, sliding_window=sliding_window
        )
        return out[..., :width], None
    if sliding_window is None or sliding_window >= length:
        return sdpa_attention_forward(
            module, query, key, value, None, scaling=scaling, is_causal=True
        )
    shared = query.shape[1] // key.shape[1]
    out = query.new_empty(query.shape[0], length, query.shape[1], value.shape[-1])
    block, _ = block_of(sliding_window)
    for begin in range(0, length, block):
        end = min(begin + block, length)
        first = max(0, begin - sliding_window + 1)
        at = torch.arange(begin, end, device=query.device)[:, None]
        seen = torch.arange(first, end, device=query.device)
        mask = (seen <= at) & (seen > at - sliding_window)
        keys, values = (x[:, :, first:end].repeat_interleave(shared, 1) for x in (key, value))
        part = functional.scaled_dot_product_attention(
            query[:, :, begin:end], keys, values, attn_mask=mask, scale=scaling
        )
        out[:, begin:end] = part.transpose(1, 2)
    return out, None
