"""How attention is called, and which kernel is asked first."""

import pytest
import torch
from support.engine import make_engine, score
from support.models import make_checkpoint, random_plan
from torch.nn.attention import SDPBackend

from scoremode.engines.torch.model.attention import attention_backends


def order() -> list[int]:
    return torch._C._get_sdp_priority_order()


def test_cudnn_is_asked_first_and_nobody_is_left_out():
    before = order()
    with attention_backends(torch.device("cuda")):
        inside = order()
        assert inside[0] == SDPBackend.CUDNN_ATTENTION.value
        assert torch.backends.cuda.math_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert order() == before
    with attention_backends(torch.device("cpu")):
        assert order() == before


@pytest.mark.parametrize(
    ("name", "has_mask"), [("llama", False), ("qwen3", False), ("mistral", True)]
)
def test_a_causal_window_needs_no_mask_and_no_copies(name, has_mask, tmp_path, monkeypatch):
    """Else the fast kernels would refuse it. Only a window longer than a sliding one has a mask."""
    engine = make_engine(make_checkpoint(tmp_path, name))
    calls = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def noted(query, key, value, **kwargs):
        calls.append((key.shape[1], kwargs))
        return attention(query, key, value, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    score(engine, random_plan(windows=3))
    full = [
        (heads, kwargs) for heads, kwargs in calls if not has_mask or kwargs["attn_mask"] is None
    ]
    assert full
    for heads, kwargs in full:
        assert kwargs["attn_mask"] is None and kwargs["is_causal"] is True
        assert kwargs["enable_gqa"] is True and heads == 2
    assert any(kwargs["attn_mask"] is not None for _, kwargs in calls) == has_mask
