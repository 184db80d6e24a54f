"""Kernels of a layer's elementwise parts against their formulas and the library's own functions."""

import pytest
import torch
from transformers.models.llama import modeling_llama

pytest.importorskip("triton", reason="needs Triton")
from support.fused_cases import DEVICE, dtypes, random

from scoremode.engines.torch.fused import kernels
from scoremode.engines.torch.fused.proofs import ACTIVATIONS, NORMS, Gate, differing

# The interpreter's numpy warns of infinities, which some of the inputs are.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


# Widths of layers: a power of two, none, and one that is not even a multiple of a load.
WIDTHS = [64, 200, 33]


@dtypes
@pytest.mark.parametrize("form", NORMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_equals_its_formula(form, width, dtype):
    x, w = random(3, 70, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    y, same = kernels.rms_norm(x, w, 1e-5, kernels.NormForm[form])
    assert same is x
    assert differing(y, NORMS[form](x, w, 1e-5), places=2) <= 0.001


@dtypes
def test_a_norm_follows_the_layout_of_its_input(dtype):
    w = random(16, dtype=dtype, seed=1)
    wide = random(2, 5, 3, 24, dtype=dtype)
    for x in (wide[..., :16].transpose(1, 2), wide[..., 8:].contiguous().transpose(0, 2)):
        y, _ = kernels.rms_norm(x, w, 1e-6, 0)
        assert differing(y, NORMS["rounded"](x, w, 1e-6), places=2) <= 0.01
        order = sorted(range(4), key=lambda d, x=x: -x.stride(d))
        assert y.permute(order).is_contiguous()


@dtypes
def test_a_norm_takes_the_sum_with_the_residual_along(dtype):
    x, residual = random(3, 7, 48, dtype=dtype), random(3, 7, 48, dtype=dtype, seed=1)
    w = random(48, dtype=dtype, seed=2)
    y, total = kernels.rms_norm(x, w, 1e-5, 0, residual)
    assert torch.equal(total, residual + x)
    assert differing(y, NORMS["rounded"](residual + x, w, 1e-5), places=2) <= 0.01


@dtypes
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("width", [2500, 33])
def test_a_gated_product_equals_its_formula(name, width, dtype):
    both = random(2, 3, 2 * width, dtype=dtype)
    gated, up = both.chunk(2, -1)
    exact = ACTIVATIONS[name](gated) * up
    y = kernels.gate(gated, up, kernels.Activation[name])
    if DEVICE.type == "cuda":
        # Triton's error function is not torch's in a few last places; a proof then keeps eager's.
        assert differing(y, exact) <= (0.005 if name == "gelu" else 0)
    # The interpreter has numpy's exponential, and none of CUDA's tanh.
    torch.testing.assert_close(y, exact, rtol=4e-3, atol=1e-3)
    own = gated.contiguous()
    assert kernels.gate(own, up, kernels.Activation[name], own) is own
    assert torch.equal(own, y)


@dtypes
@pytest.mark.parametrize(
    "form", [Gate("silu", 1.0), Gate("swish, up plus one", 1.0, 1.702), Gate("gelu", 0.5)]
)
def test_a_clamped_gate_equals_its_formula(form, dtype):
    """In turns, as gpt-oss' gates and ups lie."""
    whole = random(7, 130, dtype=dtype)
    whole[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, torch.nan])
    gated, up = whole[:, ::2], whole[:, 1::2]
    number = kernels.Activation[form.activation]
    y = kernels.gate(gated, up, number, limit=form.limit, alpha=form.alpha)
    expected = form(gated, up)
    if DEVICE.type == "cuda":
        assert differing(y, expected) <= (0.005 if form.activation == "gelu" else 0)
    torch.testing.assert_close(y, expected, rtol=4e-3, atol=1e-3, equal_nan=True)
    assert expected[0].isnan().any() and not expected[1:].isnan().any()


@dtypes
@pytest.mark.parametrize("heads", [(4, 2), (19, 1)])
def test_a_rotation_equals_the_librarys(heads, dtype):
    qkv = random(2, 5, sum(heads) + 1, 24, dtype=dtype)
    q, k, _ = (x.transpose(1, 2) for x in qkv.split([*heads, 1], dim=2))
    cos, sin = random(2, 2, 5, 24, dtype=dtype, seed=1)
    for c, s in ((cos, sin), (cos[:1], sin[:1])):
        ours = kernels.rotate(q, k, c, s, rounded=True)
        for a, b in zip(ours, modeling_llama.apply_rotary_pos_emb(q, k, c, s), strict=True):
            assert torch.equal(a, b)
            assert a.transpose(1, 2).is_contiguous()
