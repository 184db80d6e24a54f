"""8-bit weights against what bitsandbytes dequantizes to, to the bit."""

import pytest
import torch
from bitsandbytes_models import config
from golden_libraries import golden
from schemes_helpers import decode, same

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.bitsandbytes.config import parse_bitsandbytes
from scoremode.schemes.bitsandbytes.llm_int8 import LlmInt8
from scoremode.schemes.tensor_format import TensorFormat

CASES = {name: case for name, case in golden("bitsandbytes").items() if "int8" in name}


def build(shape) -> LlmInt8:
    threshold = parse_bitsandbytes(config("int8")).threshold
    return LlmInt8(
        shape, Inputs(TensorFormat(8, "int", "token", dynamic=True, outliers=threshold), ())
    )


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name):
    case = CASES[name]
    same(decode(build(tuple(case["weight"].shape)), case, case["dense"].dtype), case["dense"])


def test_every_code_under_many_scales():
    """Two products, each rounded, and neither a quotient nor one product by SCB / 127."""
    codes = torch.arange(-128, 128).to(torch.int8).repeat(50, 1)
    largest = torch.rand(50, generator=torch.Generator().manual_seed(0)) * 3
    ours = decode(build((50, 256)), {"weight": codes, "SCB": largest}, torch.float32)
    same(ours, codes * largest.view(-1, 1) * 7.874015718698502e-3)
    assert (ours != codes * (largest / 127).view(-1, 1)).any()


def test_its_inputs_are_declared_and_not_computed():
    scheme = build((4, 4))
    assert scheme.label == "LLM.int8" and scheme.tensors == ("weight", "SCB")
    assert scheme.inputs and not scheme.inputs.is_computed
    assert scheme.inputs.label == "int8 token, outliers from 6 apart"
