"""ModelOpt's MXFP8 against its own dequantizer, to the bit."""

import torch
from support.families.modelopt import E4M3, mxfp8_weight
from support.families.modelopt_golden import golden
from support.schemes import DTYPES, decode, factor, same

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.modelopt import mxfp8
from scoremode.schemes.packed import Packed

INPUTS = Inputs(TensorFormat(8, "float", "group", 32, dynamic=True, powers_of_two=True), ())


def scheme_of(stored: dict[str, torch.Tensor]) -> Packed:
    rows, columns = stored["weight"].shape
    return mxfp8(Scaling((rows, columns), "group", 32))


def test_equals_modelopts_dequantizer():
    compared = 0
    for stored, dense in golden("MXFP8"):
        for dtype, expected in dense.items():
            same(decode(scheme_of(stored), stored, dtype), expected)
            compared += 1
    assert compared == 4


def test_every_element_under_every_power():
    """In float32 the smallest products are not rounded to bfloat16 before."""
    codes = torch.arange(256).to(torch.uint8)
    stored = {
        "weight": codes.view(E4M3).repeat(256, 1),
        "weight_scale": codes.unsqueeze(1).repeat(1, 8),
    }
    for dtype in DTYPES:
        same(decode(scheme_of(stored), stored, dtype), mxfp8_weight(stored, dtype))
    ours = decode(scheme_of(stored), stored, torch.float32)
    assert not torch.equal(ours.nan_to_num(), ours.bfloat16().float().nan_to_num())


def test_codes_are_the_weight():
    stored, dense = next(golden("MXFP8"))
    codes, scale = factor(scheme_of(stored), stored, torch.float32)
    same(codes, dense[torch.bfloat16].float()[: len(codes)])
    assert (scale == 1).all()
    assert scheme_of(stored).label == "MXFP8"


def test_inputs_are_not_cut_off():
    """The power of two is the next above a group's largest magnitude / 448, as its quantizer's."""
    x = torch.randn(30, 64, generator=torch.Generator().manual_seed(0))
    found = INPUTS.quantize(x, {})
    largest = x.unflatten(1, (-1, 32)).abs().amax(2)
    assert torch.equal(found.scale, torch.exp2((largest / 448).log2().ceil()))
    expected = (x.unflatten(1, (-1, 32)) / found.scale.unsqueeze(2)).to(E4M3).float().flatten(1)
    assert torch.equal(found.codes, expected)
