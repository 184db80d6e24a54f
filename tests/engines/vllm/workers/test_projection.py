"""Projections with a float32 result, and of another model's head; vLLM's own are stood in for."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from scoremode.engines.vllm.workers.comparison import (
    Float32Projection,
    OtherHead,
    project_in_float32,
)
from scoremode.head.project import Head

GENERATOR = torch.Generator().manual_seed(0)
CPU = torch.device("cpu")


class Unquantized:
    """As vLLM's `UnquantizedEmbeddingMethod`: the result has the states' dtype."""

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.is_repacked = True

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        assert layer.is_repacked
        return torch.nn.functional.linear(x, layer.weight, bias)


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    layers = "vllm.model_executor.layers"
    for module, name in (
        (f"{layers}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"),
        (f"{layers}.linear", "UnquantizedLinearMethod"),
    ):
        stand_in = ModuleType(module)
        setattr(stand_in, name, Unquantized)
        monkeypatch.setitem(sys.modules, module, stand_in)
    for parent in ("vllm", "vllm.model_executor", layers):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


@pytest.mark.parametrize("tile", [1, 7, 31, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_float32_projection_is_rounded_nowhere(tile, dtype, has_bias, monkeypatch):
    monkeypatch.setattr(Float32Projection, "_TILE", tile)
    weight, x = random(31, 16, dtype=dtype), random(5, 16, dtype=dtype)
    bias = random(31, dtype=dtype) if has_bias else None
    z = Float32Projection().apply(SimpleNamespace(weight=weight), x, bias)
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("float32", [True, False])
@pytest.mark.parametrize("columns", [31, 64])
def test_another_head_has_its_own_bias_scale_and_softcap(float32, columns):
    """And padding to as many columns as the model's own projection has, of which nothing comes back."""
    head = Head(random(31, 16), random(31), 0.5, 3.0, 31)
    other = OtherHead(head, columns, torch.bfloat16, CPU, float32=float32)
    assert other._layer.weight.shape == (columns, 16)
    states = random(5, 16, dtype=torch.bfloat16)
    z = other.logits(states)
    assert z.shape == (5, 31) and z.dtype == (torch.float32 if float32 else torch.bfloat16)
    # The weight is rounded as the model's own would be.
    product = states.double() @ head.weight.bfloat16().double().T
    wanted = 3.0 * torch.tanh(0.5 * (product + head.bias.bfloat16().double()) / 3.0)
    torch.testing.assert_close(z.double(), wanted, rtol=0, atol=1e-5 if float32 else 0.05)


def test_a_float32_base_keeps_its_weight_as_it_is():
    head = Head(random(31, 16, dtype=torch.bfloat16), None, 1.0, None, 31)
    assert (
        OtherHead(head, 31, torch.float32, CPU, float32=True)._layer.weight.dtype == torch.bfloat16
    )
    wide = Head(random(31, 16), None, 1.0, None, 31)
    other = OtherHead(wide, 31, torch.bfloat16, CPU, float32=True)
    assert other._layer.weight.dtype == torch.bfloat16


def test_an_unquantized_head_is_projected_in_float32_and_another_refused():
    lm_head = SimpleNamespace(quant_method=Unquantized())
    project_in_float32(lm_head)
    ours = lm_head.quant_method
    assert isinstance(ours, Float32Projection)
    project_in_float32(lm_head)
    assert lm_head.quant_method is ours
    with pytest.raises(ValueError, match=r"the head is quantized \(object\): use model"):
        project_in_float32(SimpleNamespace(quant_method=object()))
