"""Attention with sinks by torch's flash kernel, for models that the library knows no other way for.

A sink is a logit of a head's own beside its scores: it takes its share of the softmax and adds nothing.
With Z the sum of a query's exponentials and s the sink, what the kernel returns wants the factor
Z / (Z + exp(s)), which is the sigmoid of log Z - s; the kernel gives log Z in float32. Eager attention
moves a gigabyte of scores in every layer for a window of 2,048 tokens, and rounds them.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["SINKS", "attend_with_sinks", "choose_sinks"]

# What the record calls it, and transformers, which looks for kernels of its own where it reads flash.
SINKS = "flash with sinks"
_REGISTERED = "scoremode_sinks"
_DTYPES = (torch.bfloat16, torch.float16)
# Of a head, where a config doesn't say.
_ANY_WIDTH = 64


def choose_sinks(model: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Has a model that was built for eager attention attend by the flash kernel; returns whether.

    It may where all of its attention has sinks and the library runs it with flash kernels, and so
    without any mask but causal and sliding ones; and where the kernel runs on this GPU.
    """
    known = getattr(model, "_supports_flash_attn", False) and model._supports_attention_backend
    if device.type != "cuda" or dtype not in _DTYPES or not known or not _has_sinks(model):
        return False
    width = getattr(model.config.get_text_config(), "head_dim", None)
    if not _runs(width or _ANY_WIDTH, dtype, device):
        return False
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(_REGISTERED, attend_with_sinks)
    AttentionMaskInterface.register(_REGISTERED, flash_attention_mask)
    model.set_attn_implementation(_REGISTERED)
    return True


def _has_sinks(model: nn.Module) -> bool:
    found = [m for m in model.modules() if isinstance(getattr(m, "is_causal", None), bool)]
    return bool(found) and all(isinstance(getattr(m, "sinks", None), nn.Parameter) for m in found)


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
