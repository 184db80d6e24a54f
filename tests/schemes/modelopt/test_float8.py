"""ModelOpt's float8 against its own dequantizer, to the bit."""

import pytest
import torch
from support.families.modelopt import E4M3, fp8, fp8_block, fp8_block_weight, fp8_weight
from support.families.modelopt_golden import golden
from support.schemes import DTYPES, decode, factor, random_weight, same

from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.modelopt import float8
from scoremode.schemes.packed import Packed

SCALINGS = {"FP8": "tensor", "FP8_PER_CHANNEL_PER_TOKEN": "channel", "FP8_PB_WO": "block"}


def scheme_of(stored: dict[str, torch.Tensor], strategy: str) -> Packed:
    rows, columns = stored["weight"].shape
    block = (128, 128) if strategy == "block" else None
    return float8(Scaling((rows, columns), strategy, block=block))


@pytest.mark.parametrize("algorithm", SCALINGS)
def test_equals_modelopts_dequantizer(algorithm):
    compared = 0
    for stored, dense in golden(algorithm):
        for dtype, expected in dense.items():
            same(decode(scheme_of(stored, SCALINGS[algorithm]), stored, dtype), expected)
            compared += 1
    assert compared == 4


@pytest.mark.parametrize("shape", [(576, 192), (130, 129), (5, 7), (128, 256)])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_scales_are_rounded_before_the_product(strategy, shape):
    rows, columns = shape
    weight = random_weight(rows, columns, torch.bfloat16)
    if strategy == "block":
        stored = fp8_block(weight)
        expected = {dtype: fp8_block_weight(stored, dtype) for dtype in DTYPES}
    else:
        stored = fp8(weight, by_row=strategy == "channel")
        expected = {dtype: fp8_weight(stored, dtype) for dtype in DTYPES}
    scheme = scheme_of(stored, strategy)
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype), expected[dtype])
    if len(weight) == 576:
        assert not torch.equal(expected[torch.bfloat16], expected[torch.float32].bfloat16())


def test_codes_have_the_scale_as_it_is_stored():
    stored = fp8(random_weight(24, 32, torch.bfloat16))
    codes, scale = factor(scheme_of(stored, "tensor"), stored, E4M3)
    same(codes, stored["weight"])
    assert (scale.float() == stored["weight_scale"]).all()
