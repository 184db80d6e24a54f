"""8-bit weights against what bitsandbytes dequantizes to, to the bit."""

import pytest
import torch
from support.families.bitsandbytes import config
from support.golden_libraries import golden
from support.schemes import decode, same

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import ColumnScheme, Scratch
from scoremode.schemes.bitsandbytes import LlmInt8, parse_bitsandbytes
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.fields import TensorFormat

CASES = {name: case for name, case in golden("bitsandbytes").items() if "int8" in name}


def build(shape) -> LlmInt8:
    threshold = parse_bitsandbytes(config("int8")).threshold
    return LlmInt8(
        shape, Inputs(TensorFormat(8, "int", "token", dynamic=True, outliers=threshold), ())
    )


def test_every_code_under_many_scales():
    """Two products, each rounded, and neither a quotient nor one product by SCB / 127."""
    codes = torch.arange(-128, 128).to(torch.int8).repeat(50, 1)
    largest = torch.rand(50, generator=torch.Generator().manual_seed(0)) * 3
    ours = decode(build((50, 256)), {"weight": codes, "SCB": largest}, torch.float32)
    same(ours, codes * largest.view(-1, 1) * 7.874015718698502e-3)
    assert (ours != codes * (largest / 127).view(-1, 1)).any()


def test_its_inputs_are_declared():
    scheme = build((4, 4))
    assert scheme.label == "LLM.int8" and scheme.tensors == ("weight", "SCB")
    assert isinstance(scheme, ColumnScheme)
    assert scheme.inputs and scheme.inputs.label == "int8 token, outliers from 6 apart"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.bfloat16], ids=str)
def test_codes_and_their_scales(dtype):
    case = CASES["int8-f32"]
    scheme = build(tuple(case["weight"].shape))
    out = torch.empty(9, 45, dtype=dtype)
    scale = scheme.factor(case, out, Scratch())
    same(out.to(torch.int8), case["weight"])
    product = Quantized(out, scale).dense(scheme.codes.group)
    assert torch.allclose(product, case["dense"], rtol=3e-7, atol=0)
    aligned = {s: case[s].clone() for s in scheme.tensors}
    stored = scheme.stored_factors(aligned, dtype)
    assert (stored is not None) == (dtype == torch.int8)
    if stored is not None:
        assert stored.codes is aligned["weight"] and torch.equal(stored.scale, scale)


@pytest.mark.parametrize("name", CASES)
def test_columns_are_those_of_the_effective_weight(name):
    case = CASES[name]
    scheme = build(tuple(case["weight"].shape))
    columns = torch.tensor([3, 0, 44])
    same(scheme.columns(case, columns, case["dense"].dtype), case["dense"][:, columns])
