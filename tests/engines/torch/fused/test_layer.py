"""Layers whose residual addition is fused with their second norm, and those whose is not."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

pytest.importorskip("triton", reason="needs Triton")
from support.fused_cases import DEVICE, layer, random
from support.models import CACHE_KEYWORD

from scoremode.engines.torch.fused.modules import fuse_modules

# The interpreter's numpy warns of infinities, which some of the inputs are.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


class ScaledLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        return super().forward(hidden_states, **kwargs) * 1.01


class ForgetfulLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        hidden = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **kwargs)[0]
        return self.mlp(self.post_attention_layernorm(hidden))


class LaterLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, position_ids=None, **kwargs):
        return super().forward(hidden_states, position_ids=position_ids + 1, **kwargs)


class MaskingLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, attention_mask=None, **kwargs):
        mask = "mine" if attention_mask is None else attention_mask
        return super().forward(hidden_states, attention_mask=mask, **kwargs)


class TupleLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, use_cache=False, **kwargs):
        out = super().forward(hidden_states, **kwargs)
        return (out, None) if use_cache else out


class TwiceLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        self.mlp(hidden_states)
        return super().forward(hidden_states, **kwargs)


class BetweenLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        normed = self.input_layernorm(hidden_states)
        hidden = hidden_states + self.self_attn(hidden_states=normed, **kwargs)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden * 2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (BetweenLayer, "computes something else"),
        (ScaledLayer, "computes something else"),
        (ForgetfulLayer, "TypeError: "),
        (LaterLayer, "TypeError: "),
        (MaskingLayer, "its attention is given something else"),
        (TupleLayer, "computes something else"),
        (TwiceLayer, "its parts are not called once each"),
    ],
)
def test_a_layer_that_does_more_stays_eager(kind, reason):
    module = layer(kind)
    what = fuse_modules([module], DEVICE, torch.float16).describe()
    assert what.pop(kind.__name__).startswith(f"eager ({reason}")
    assert "forward" not in vars(module)
    assert set(what.values()) == {"triton"}


def test_a_layer_hands_its_arguments_on():
    module = layer()
    fuse_modules([module], DEVICE, torch.float16)
    calls = []

    def attention(**kwargs):
        calls.append(kwargs)
        return kwargs["hidden_states"], None

    module.self_attn.forward = attention
    x = random(1, 3, 32, dtype=torch.float16)
    cache, mask = object(), object()
    y = module(x, mask, **{CACHE_KEYWORD: cache}, other=5)
    (call,) = calls
    assert call["attention_mask"] is mask and call[CACHE_KEYWORD] is cache
    assert call["other"] == 5 and call["use_cache"] is False and call["position_ids"] is None
    hidden = x + module.input_layernorm(x)
    assert torch.equal(y, hidden + module.mlp(module.post_attention_layernorm(hidden)))
