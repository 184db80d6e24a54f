"""Quark's weights: code times scale in float32, as its `dequantize` has them."""

import pytest
import torch
from quark_models import quantize
from schemes_helpers import DTYPES, decode, random_weight, same

from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.quark.weights import QuarkFloat8, QuarkInt8, QuarkMxfp4

SCHEMES = {
    "fp8": QuarkFloat8(Scaling((6, 96), "tensor")),
    "ptpc": QuarkFloat8(Scaling((6, 96), "channel")),
    "int8": QuarkInt8(Scaling((6, 96), "channel"), 8),
    "mxfp4": QuarkMxfp4(Scaling((6, 96), "group", 32), 4),
}


@pytest.mark.parametrize("kind", SCHEMES)
def test_equals_plain_arithmetic(kind):
    stored = quantize(random_weight(6, 96, torch.bfloat16), kind)
    for dtype in DTYPES:
        same(decode(SCHEMES[kind], stored, dtype), stored["dense"])


def test_a_scale_in_bfloat16_does_not_round_the_product():
    stored = quantize(random_weight(6, 96, torch.bfloat16), "ptpc")
    stored["weight_scale"] = stored["weight_scale"].bfloat16()
    exact = stored["weight"].float() * stored["weight_scale"].float()[:, None]
    same(decode(SCHEMES["ptpc"], stored, torch.float32), exact)
    assert (exact != exact.bfloat16().float()).any()
