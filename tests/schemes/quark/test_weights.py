"""Quark's weights against what the library dequantizes to, to the bit."""

import pytest
import torch
from golden_libraries import golden
from schemes_helpers import DTYPES, decode, same

from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.quark.weights import QuarkFloat8, QuarkInt8, QuarkMxfp4

CASES = golden("quark")


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name):
    case = CASES[name]
    shape, (kind, by) = tuple(case["dense"].shape), (f"{name}-".split("-")[:2])
    if kind == "mxfp4":
        scheme = QuarkMxfp4(Scaling(shape, "group", 32), 4)
    elif kind == "int8":
        scheme = QuarkInt8(Scaling(shape, by), 8)
    else:
        scheme = QuarkFloat8(Scaling(shape, by))
    for dtype in DTYPES:
        same(decode(scheme, case, dtype), case["dense"])


def test_a_scale_in_bfloat16_does_not_round_the_product():
    case = CASES["fp8-channel-bf16"]
    assert case["weight_scale"].dtype == torch.bfloat16
    dense = case["dense"]
    assert dense.dtype == torch.float32 and (dense != dense.bfloat16().float()).any()
