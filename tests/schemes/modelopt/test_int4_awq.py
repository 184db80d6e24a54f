"""ModelOpt's AWQ against what its quantizers simulate, and plain torch."""

import pytest
import torch
from support.families.modelopt import E4M3, int4_float8, int4_float8_weight, int4_weight
from support.families.modelopt_golden import golden
from support.schemes import DTYPES, decode, factor, random_weight, same

from scoremode.schemes.base import input_factor
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.modelopt import Int4Float8Awq, int4_awq
from scoremode.schemes.packed import Packed

SHAPES = [(2, 3), (64, 128), (70, 300), (1024, 640)]


def scheme_of(stored: dict[str, torch.Tensor], **others) -> Packed:
    pairs, columns = stored["weight"].shape
    kind = Int4Float8Awq.of if "weight_scale_2" in stored else int4_awq
    return kind(Scaling((2 * pairs, columns), "group", 128), **others)


def random(rows: int, columns: int, groups: int) -> dict[str, torch.Tensor]:
    """All codes, -8 too, which no quantizer makes often."""
    generator = torch.Generator().manual_seed(rows)
    packed = torch.randint(0, 256, (rows // 2, columns), generator=generator).to(torch.uint8)
    return {"weight": packed, "weight_scale": torch.rand(rows, groups, generator=generator) + 0.01}


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_plain_torch(shape):
    rows, columns = shape
    stored = random(rows, columns, -(-columns // 128))
    for dtype in DTYPES:
        same(decode(scheme_of(stored), stored, dtype) + 0.0, int4_weight(stored, dtype) + 0.0)
    for dtype in (torch.int8, torch.bfloat16):
        codes, scale = factor(scheme_of(stored), stored, dtype)
        product = codes.double() * scale
        assert torch.equal(product.float(), int4_weight(stored, torch.float32))
    assert rows == 2 or (codes.min() == -8 and codes.max() == 7)


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "W4A8_AWQ"])
def test_equals_what_modelopt_simulates(algorithm):
    """Of the linear whose factors are its own. What it exports divides by the scale where what it
    simulates multiplies with the inverse: three values halfway between two codes fall to another."""
    ((stored, dense),) = golden(algorithm)
    scheme = scheme_of(stored, input_factor="pre_quant_scale")
    assert set(stored) - set(scheme.tensors) - {"input_scale"} == {input_factor(scheme)}
    ours, theirs = decode(scheme, stored, torch.bfloat16), dense[torch.bfloat16]
    step = stored["weight_scale"] * 1.2
    other = ours != theirs
    assert other.sum() == 3 and ((ours - theirs).abs() <= step)[other].all()
    same(ours.masked_fill(other, 0) + 0.0, theirs.masked_fill(other, 0) + 0.0)
    assert input_factor(scheme_of(stored)) is None


@pytest.mark.parametrize("shape", [(64, 128), (70, 100), (1024, 640)])
def test_float8_of_integers(shape):
    rows, columns = shape
    stored = int4_float8(random_weight(rows, columns, torch.bfloat16))
    scheme = scheme_of(stored)
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype) + 0.0, int4_float8_weight(stored, dtype) + 0.0)
    codes, scale = factor(scheme, stored, E4M3)
    assert (scale.float() == stored["weight_scale_2"]).all()
    product = codes.float() * stored["weight_scale_2"]
    same(product + 0.0, int4_float8_weight(stored, torch.float32) + 0.0)
    assert codes.float().abs().max() == 448
