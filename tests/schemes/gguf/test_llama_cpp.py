"""GGUF weights with llama.cpp's inputs: whole products against its own dot products."""

from pathlib import Path

import numpy as np
import pytest
import torch

from scoremode.checkpoint.gguf.table import Layout
from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.matmul.products import choose_product
from scoremode.engines.torch.matmul.sums import Operands
from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.base import Dense, FactoredScheme, MinimumScheme, Scheme, Scratch, factors_of
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.gguf import BLOCK_TYPES, Blocks, Permuted, RoundedDense, Scaled, with_inputs

ROWS = Path(__file__).parents[2] / "golden" / "gguf_arithmetic" / "rows.npz"
CPU = choose_device("cpu", None, None)
SHAPE = (8, 512)


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    with np.load(ROWS) as found:
        return dict(found)


def product(scheme: Scheme, stored: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    inputs = scheme.inputs
    assert isinstance(inputs, GgmlInputs) and isinstance(scheme, FactoredScheme)
    minimums = inputs.summed is not None
    multiply = choose_product(inputs.codes, scheme.codes, SHAPE, CPU, minimums=minimums)
    codes = torch.empty(SHAPE, dtype=multiply.dtype)
    weight = factors_of(scheme, stored, codes, Scratch())
    quantized = inputs.quantize(x, {}, multiply.dtype)
    return multiply.multiply(Operands(quantized, weight, Scratch()))


@pytest.mark.parametrize("kind", sorted(BLOCK_TYPES))
def test_products_are_llama_cpps(rows, kind):
    """To what float32 sums in another order may differ; weights alone are 100 times further away."""
    scheme = with_inputs(Blocks(kind, SHAPE))
    assert isinstance(scheme, MinimumScheme)
    stored, x = {kind: torch.from_numpy(rows[f"weight.{kind}"])}, torch.from_numpy(rows["x"])
    found, expected = product(scheme, stored, x), torch.from_numpy(rows[f"dots.{kind}"])
    dense = torch.empty(SHAPE)
    scheme.decode(stored, dense, Scratch())
    reach = x.abs() @ dense.abs().T
    assert ((found - expected).abs() <= 1e-6 * reach).all()
    assert ((x @ dense.T - expected).abs() > 1e-4 * reach).any()


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("Q4_0", GgmlInputs("Q8_0")),
        ("NVFP4", GgmlInputs("Q8_0")),
        ("Q5_1", GgmlInputs("Q8_1", 32)),
        ("Q2_K", GgmlInputs("Q8_K", 16)),
        ("Q4_K", GgmlInputs("Q8_K", 32)),
        ("Q6_K", GgmlInputs("Q8_K")),
        ("IQ4_XS", GgmlInputs("Q8_K")),
        ("TQ1_0", GgmlInputs("Q8_K")),
    ],
)
def test_the_type_says_how(kind, inputs):
    blocks = Blocks(kind, SHAPE)
    assert blocks.inputs is None and with_inputs(blocks).inputs == inputs
    expert = Expert(blocks, ((kind, kind),))
    permuted = Permuted(blocks, Layout())
    for around in (expert, Stacked(3, expert), permuted, Scaled(blocks)):
        assert around.inputs is None and with_inputs(around).inputs == inputs


def test_floats_meet_themselves():
    x, stored = torch.randn(5, 512), torch.randn(SHAPE)
    for name, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16)):
        scheme = with_inputs(Dense(SHAPE, name))
        assert isinstance(scheme, RoundedDense) and scheme.inputs.label == name
        tensors = {"weight": stored.to(dtype)}
        exact = x.to(dtype).double() @ stored.to(dtype).double().T
        found = product(scheme, tensors, x)
        torch.testing.assert_close(found, exact.float(), rtol=0, atol=1e-4)
        kept = scheme.stored_factors(tensors, dtype)
        assert kept is not None and kept.codes is tensors["weight"]
        assert scheme.stored_factors(tensors, torch.float32) is None
    full = Dense(SHAPE, "F32")
    assert with_inputs(full) is full


def test_rows_in_another_order(rows):
    """Minimums go with their rows."""
    stored, x = torch.from_numpy(rows["weight.Q4_1"]), torch.from_numpy(rows["x"])
    turned = {"Q4_1": stored.view(2, 2, 2, -1).transpose(1, 2).reshape(stored.shape)}
    blocks = Blocks("Q4_1", SHAPE)
    scheme = with_inputs(Permuted(blocks, Layout(turns=2)))
    assert isinstance(scheme, MinimumScheme)
    expected = product(with_inputs(blocks), {"Q4_1": stored}, x)
    torch.testing.assert_close(product(scheme, turned, x), expected)


def test_one_more_factor_of_all(rows):
    stored, x = torch.from_numpy(rows["weight.NVFP4"]), torch.from_numpy(rows["x"])
    plain = with_inputs(Blocks("NVFP4", SHAPE))
    scheme = with_inputs(Scaled(Blocks("NVFP4", SHAPE)))
    tensors = {"NVFP4": stored, "scale": torch.tensor([0.3])}
    expected = product(plain, {"NVFP4": stored}, x) * 0.3
    torch.testing.assert_close(product(scheme, tensors, x), expected)
