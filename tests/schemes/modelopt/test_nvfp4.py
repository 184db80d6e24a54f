"""ModelOpt's NVFP4: every element under every local scale, global scales that multiply."""

from typing import Any

import pytest
import torch
from compressed_tensors.entrypoints.convert.converters.modelopt_nvfp4 import ModelOptNvfp4Converter
from support.families.modelopt import nvfp4, nvfp4_weight
from support.families.modelopt_golden import golden
from support.schemes import DTYPES, build, decode, factor, preset, random_weight, same

from scoremode.schemes import modelopt as schemes_modelopt
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.packed import Packed

INPUTS = Inputs(TensorFormat(4, "float", "tensor_group", 16, dynamic="local"), ("input_scale",))


def scheme_of(stored: dict[str, torch.Tensor], **others: Any) -> Packed:
    rows, width = stored["weight"].shape
    return schemes_modelopt.nvfp4(Scaling((rows, 2 * width), "group", 16), **others)


def every_code(whole: float) -> dict[str, torch.Tensor]:
    codes = torch.arange(16)
    packed = (codes[0::2] | codes[1::2] << 4).to(torch.uint8)
    scale = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).unsqueeze(1)
    return {
        "weight": packed.repeat(256, 1),
        "weight_scale": scale,
        "weight_scale_2": torch.tensor(whole),
    }


@pytest.mark.parametrize("whole", [1.0, 3.0, 0.1, 3.7e-4, 1 / 2688, 1e-30, 1e30, -5.0])
def test_every_element_under_every_scale(whole):
    """Negative, subnormal and NaN local scales too: e2m1 · (scale · global), rounded to the dtype."""
    stored = every_code(whole)
    for dtype in DTYPES:
        same(decode(scheme_of(stored), stored, dtype), nvfp4_weight(stored, dtype))


@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A16_NVFP4"])
def test_equals_modelopts_dequantizer(algorithm):
    compared = 0
    for stored, dense in golden(algorithm):
        for dtype, expected in dense.items():
            # Its table has 0 for the code of -0.
            same(decode(scheme_of(stored), stored, dtype) + 0.0, expected)
            compared += 1
    assert compared == 4


def test_the_order_of_the_products_shows():
    """(e2m1 · scale) · global, as ModelOpt's Triton kernel has it, is another weight."""
    stored = every_code(3.7e-4)
    codes, whole = factor(scheme_of(stored), stored, torch.float32)
    other = codes * whole.float()
    ours = decode(scheme_of(stored), stored, torch.float32)
    finite = ours.isfinite()
    assert not torch.equal(other[finite], ours[finite])
    torch.testing.assert_close(other, ours, rtol=2**-22, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_codes_and_the_global_scale_of_any_rank(shape):
    stored = every_code(0.37)
    stored["weight_scale_2"] = stored["weight_scale_2"].reshape(shape)
    codes, scale = factor(scheme_of(stored), stored, torch.bfloat16)
    # Local scale 1.0 has the code 0x38; 6.0 is element 7.
    assert codes[0x38, 7] == 6 and (scale.float() == torch.tensor(0.37)).all()
    for dtype in DTYPES:
        same(decode(scheme_of(stored), stored, dtype), nvfp4_weight(stored, dtype))


@pytest.mark.parametrize("power", [-12, 3])
def test_equals_compressed_tensors_of_the_converted_file(power):
    """Its inverse of a power of two is exact, so that its quotient is our product."""
    stored = nvfp4(random_weight(11, 64, torch.bfloat16), inputs=True)
    stored["weight_scale_2"] = torch.tensor(2.0**power)
    converter = ModelOptNvfp4Converter(targets=["re:.*"])
    theirs = converter.process({f"m.{name}": tensor for name, tensor in stored.items()})
    converted = {name.removeprefix("m."): tensor for name, tensor in theirs.items()}
    same(
        decode(scheme_of(stored), stored, torch.bfloat16),
        decode(build(converted, *preset("NVFP4")), converted, torch.bfloat16),
    )


def reference(x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """ModelOpt's `fp8_quantize_scale` and `fp4_round_magnitude`, value by value."""
    groups = x.unflatten(-1, (-1, 16))
    local = (groups.abs().amax(-1, keepdim=True) / (6.0 * whole)).clamp(max=448.0)
    step = local.to(torch.float8_e4m3fn).float() * whole
    step = torch.where(step == 0, 1.0, step)
    ratio = groups.abs() / step
    limits = [(0.25, True), (0.75, False), (1.25, True), (1.75, False), (2.5, True), (3.5, False)]
    rounded = torch.where(ratio <= 5, 4.0, 6.0)
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]
    for (limit, closed), value in reversed(list(zip(limits, values, strict=True))):
        below = ratio <= limit if closed else ratio < limit
        rounded = torch.where(below, value, rounded)
    return (rounded * step * torch.where(groups < 0, -1.0, 1.0)).flatten(-2)


@pytest.mark.parametrize("whole", [1.3e-3, 2.0**-9, 0.21, 7e-5])
def test_inputs_under_a_global_scale_that_multiplies(whole):
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    x[3] *= 1e-3
    x[4], x[5] = 0, 40 * x[5]
    tensors = {"input_scale": torch.tensor(whole)}
    found = INPUTS.quantize(x, tensors)
    assert found.scale.shape == (1, 1) and found.scale.item() == tensors["input_scale"].item()
    # Code times local scale is exact, and times the global one rounds once; the reference rounds the
    # scales' product and then the value's.
    torch.testing.assert_close(
        found.dense(None), reference(x, tensors["input_scale"]), rtol=2**-22, atol=0
    )


def test_it_is_not_the_inverse_that_divides():
    """1 / (1 / x) is another float for many an x."""
    scales = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 1e-3
    assert ((1 / (1 / scales)) != scales).any()
    for scale in scales[(1 / (1 / scales)) != scales][:3]:
        found = INPUTS.quantize(torch.ones(1, 16), {"input_scale": scale.view(1)})
        assert found.scale.item() == scale.item()
