"""Attention on the device at hand: the order of torch's kernels, long windows without masks, and sinks.

torch asks its kernels in an order of its own, flash first. cuDNN's is the faster one on the GPUs that
it is made for; where it can't take a call (a head that is too wide, float32) the next one does.

Long windows (`attend`): transformers gives torch's attention a mask of truth values where a layer's
tokens see the last few thousand others alone: 16 GiB of it at 128k tokens, and twice as much once it is
numbers. Here a block of queries is attended with the keys that it can see, under a mask of that size.
Layers that see all tokens before go to the library's function as ever; on a CPU with values as wide as
keys, where they are narrower (DeepSeek's): torch has no other kernel there that holds no scores.

Sinks (`attend_with_sinks`): a sink is a logit of a head's own beside its scores: it takes its share of
the softmax and adds nothing. With Z the sum of a query's exponentials and s the sink, what the flash
kernel returns wants the factor Z / (Z + exp(s)), which is the sigmoid of log Z - s; the kernel gives
log Z in float32. Eager attention moves a gigabyte of scores in every layer for a window of 2,048
tokens, and rounds them.
"""

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
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
# What the record calls it, and transformers, which looks for kernels of its own where it reads flash.
SINKS = "flash with sinks"
_WITH_SINKS = "scoremode_sinks"
_DTYPES = (torch.bfloat16, torch.float16)
# Of a head, where a config doesn't say.
_ANY_WIDTH = 64


def attention_backends(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which scaled_dot_product_attention on `device` asks cuDNN first; nothing on a CPU.

    The order belongs to the process, so no other thread may compute attention meanwhile.
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel(_ORDER, set_priority=True)


def attends_without_masks(model: Any, attention: str) -> bool:
    """Tells whether each layer of a model says by `sliding_window` alone what it sees: so it must for
    the flash kernels that the library runs it with, which take no other mask. Some don't all the same:
    Phi-3.5-MoE and Qwen2-MoE have a sliding mask and don't tell their attention, and OLMoE tells it
    of a window that its mask knows nothing of."""
    if attention != "sdpa" or not _runs_by_flash(model):
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


def replace_attention(model: Any, instead: str | None = None) -> None:
    """Has the model attend by `attend` from now on, without masks; or again as the library knows it,
    `instead`."""
    if instead is not None:
        model.set_attn_implementation(instead)
    else:
        _attend_by(model, _REGISTERED, attend)


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


def choose_sinks(model: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Has a model that was built for eager attention attend by the flash kernel; returns whether.

    It may where all of its attention has sinks and the library runs it with flash kernels, and so
    without any mask but causal and sliding ones; and where the kernel runs on this GPU.
    """
    if device.type != "cuda" or dtype not in _DTYPES or not _runs_by_flash(model):
        return False
    attentions = [m for m in model.modules() if isinstance(getattr(m, "is_causal", None), bool)]
    sinks = [getattr(m, "sinks", None) for m in attentions]
    if not sinks or not all(isinstance(sink, nn.Parameter) for sink in sinks):
        return False
    width = getattr(model.config.get_text_config(), "head_dim", None)
    if not _runs(width or _ANY_WIDTH, dtype, device):
        return False
    _attend_by(model, _WITH_SINKS, attend_with_sinks)
    return True


def _runs_by_flash(model: Any) -> bool:
    """Tells whether the library runs a model with flash kernels."""
    return getattr(model, "_supports_flash_attn", False) and model._supports_attention_backend


def _attend_by(model: Any, name: str, function: Callable[..., Any]) -> None:
    """Has a model attend by a `function` that takes no masks, which the library knows by its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, flash_attention_mask)
    model.set_attn_implementation(name)


def _runs(width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Tells whether torch has the kernel for this GPU, and for heads of this width: there is none
    before Ampere, and none for more than 256."""
    given = torch.zeros(1, 1, 1, width, dtype=dtype, device=device)
    try:
        _flash(given, given, given, 1.0, None)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False
    return True


def attend_with_sinks(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    s_aux: torch.Tensor,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention as transformers calls it: queries [B, H, T, d], keys and values [B, K, T, d],
    sinks [H] → [B, T, H, d'].

    With a `sliding_window` a token sees that many, itself included.
    """
    assert attention_mask is None and not dropout, "only causal and sliding masks are known"
    width = value.shape[-1]
    value = functional.pad(value, (0, query.shape[-1] - width))
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    out, log_sums = _flash(query, key, value, scaling, sliding_window)
    share = torch.sigmoid(log_sums - s_aux.float().view(-1, 1))
    # In place, and in float32 within one operation.
    return out[..., :width].mul_(share.transpose(1, 2).unsqueeze(-1)), None


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    sliding_window: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without sinks [B, T, H, d], and the logarithms of its sums float32 [B, H, T]."""
    length = query.shape[1]
    window = -1 if sliding_window is None else sliding_window - 1
    out, log_sums, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, None, None, length, length, 0.0, window < 0, False,
        scale=scaling, window_size_left=window, window_size_right=0,
    )  # fmt: skip
    return out, log_sums
