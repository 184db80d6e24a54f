"""Ours against compressed-tensors' fake-quantized input, in float32."""

from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationStatus
from compressed_tensors.quantization.lifecycle.forward import forward_quantize
from support.schemes import DTYPES, dtype_name, group, quantization
from transformers.integrations.deepgemm import _ceil_to_ue8m0

from scoremode.schemes.activations.inputs import Inputs, quantize_apart
from scoremode.schemes.compressed_tensors_config import parse_quantization
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS, E2M1, E2M3, E4M3
from scoremode.schemes.fields import TensorFormat

INT8 = {"num_bits": 8, "type": "int"}
INT4 = {"num_bits": 4, "type": "int"}
FP8 = {"num_bits": 8, "type": "float"}
TOKEN = {"strategy": "token", "dynamic": True}
TENSOR = {"strategy": "tensor", "dynamic": True}
STATIC = {"strategy": "tensor", "dynamic": False}
ASYM = {"symmetric": False}


def by_group(size: int) -> dict[str, Any]:
    return {"strategy": "group", "group_size": size, "dynamic": True}


def mx(bits: int) -> dict[str, Any]:
    return {"num_bits": bits, "type": "float", "scale_dtype": "uint8"} | by_group(32)


NVFP4 = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local",
    "scale_dtype": "float8_e4m3fn",
}  # fmt: skip
# Label: fields, and the label of what the codes are.
FORMS = {
    "int8 token": INT8 | TOKEN,
    "int4 token": INT4 | TOKEN,
    "int3 token": INT8 | TOKEN | {"num_bits": 3},
    "int8 token asymmetric": INT8 | TOKEN | ASYM,
    "int4 token asymmetric": INT4 | TOKEN | ASYM,
    "int8 group 32": INT8 | by_group(32),
    "int4 group 16 asymmetric": INT4 | by_group(16) | ASYM,
    "int8 tensor": INT8 | TENSOR,
    "int8 tensor asymmetric": INT8 | TENSOR | ASYM,
    "int8 tensor static": INT8 | STATIC,
    "int8 tensor static asymmetric": INT8 | STATIC | ASYM,
    "int4 tensor static": INT4 | STATIC,
    "float8 token": FP8 | TOKEN,
    "float8 group 128": FP8 | by_group(128),
    "float8 tensor": FP8 | TENSOR,
    "float8 tensor static": FP8 | STATIC,
    "float4 group 32": mx(4),
    "float6 group 32": mx(6),
    "float8 group 32": mx(8),
    "float4 group 16 local": NVFP4,
}


def inputs_of(fields: dict[str, Any]) -> Inputs:
    config = quantization({"g": group() | {"input_activations": fields}})
    parsed = parse_quantization(config).groups[0].inputs
    assert parsed is not None
    stored: tuple[str, ...] = ()
    if parsed.strategy == "tensor_group":
        stored = ("input_global_scale",)
    elif parsed.dynamic is False:
        stored = ("input_scale", *(() if parsed.symmetric else ("input_zero_point",)))
    return Inputs(parsed, stored)


def library(x: torch.Tensor, fields: dict[str, Any], stored: dict) -> torch.Tensor:
    """x [B, T, I]; in the library one scale per tensor spans the batch, so a window at a time."""
    args = QuantizationArgs(**fields)
    module = torch.nn.Module()
    module.quantization_status = QuantizationStatus.FROZEN
    for name, tensor in stored.items():
        setattr(module, name, tensor)
    return torch.cat([forward_quantize(module, window, "input", args) for window in x.split(1)])


def check(x: torch.Tensor, name: str, stored: dict | None = None) -> None:
    """Codes times scales against the library's value."""
    fields, stored = FORMS[name], stored or tensors_of(name)
    inputs = inputs_of(fields)
    assert inputs.label == name
    assert set(inputs.tensors) <= set(stored)
    actual = inputs.quantize(x, stored)
    codes, kind = actual.codes, inputs.codes
    assert codes.shape == (x.shape[0] * x.shape[1], x.shape[2])
    assert actual.scale.dtype == torch.float32
    groups = 1 if kind.group is None else x.shape[2] // kind.group
    assert actual.scale.shape in {(1, groups), (len(codes), groups)}
    # Products are of codes, in bfloat16 or as integers: they must be exact there.
    finite = codes.float()[codes.float().abs() > 2.0**-126]
    assert torch.equal(finite.bfloat16().float(), finite)
    if kind.type == "int":
        assert kind.limit is not None
        assert codes.float().abs().max() <= kind.limit
        assert torch.equal(codes.float().round(), codes.float())
    if kind.type == "float8":
        assert torch.equal(codes.to(torch.float8_e4m3fn).float(), codes)
    expected = library(x.float(), fields, stored).flatten(0, 1)
    ours = actual.dense(kind.group)
    if name == "float4 group 16 local":
        # The library rounds scale/global, then its product with the element; ours keeps element ×
        # scale exact and rounds 1/global and one product: two roundings each, of half an ulp (2^-24
        # of the value) each, so 2^-22 at most.
        assert ((ours - expected).abs() <= expected.abs() * 2.0**-22).all()
    else:
        # The same operations in the same order: every value the same.
        assert torch.equal(ours, expected)


def tensors_of(name: str) -> dict[str, torch.Tensor]:
    stored = {}
    if "static" in name:
        stored["input_scale"] = torch.tensor([0.0173])
    if "static asymmetric" in name:
        stored["input_zero_point"] = torch.tensor([-11], dtype=torch.int8)
    if "local" in name:
        stored["input_global_scale"] = torch.tensor([37.3])
    return stored


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 1, 128), (3, 7, 256), (2, 50, 384)], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_equals_the_library(name, shape):
    """Rows of unlike sizes and offsets, rounded to each dtype before."""
    scale = torch.logspace(-3, 3, shape[0] * shape[1]).view(*shape[:2], 1)
    for dtype in DTYPES:
        check((random(*shape) * scale + 0.3 * scale).to(dtype), name)
        check((random(*shape, seed=1)).to(dtype), name)


@pytest.mark.parametrize("name", FORMS)
def test_each_window_has_its_own_scale_per_tensor(name):
    x = random(4, 6, 128) * torch.tensor([0.01, 1.0, 50.0, 3.0]).view(4, 1, 1)
    check(x, name)
    inputs, stored = inputs_of(FORMS[name]), tensors_of(name)
    together = inputs.quantize(x, stored)
    for window in range(4):
        alone = inputs.quantize(x[window], stored)
        assert torch.equal(alone.codes.float(), together.codes[window * 6 : window * 6 + 6].float())


@pytest.mark.parametrize("name", FORMS)
def test_zeros(name):
    """All-zero rows and groups beside others, and nothing but zeros."""
    x = random(2, 5, 128)
    x[0, 2] = 0
    x[1, :, 32:64] = 0
    x[1, 3] = -0.0
    if "asymmetric" in name:
        # The library's zero point of an empty range is 0/0 as an integer, whatever that is.
        quantized = inputs_of(FORMS[name]).quantize(x, tensors_of(name))
        dense = quantized.dense(inputs_of(FORMS[name]).codes.group)
        if "static" not in name:
            assert (dense[x.flatten(0, 1) == 0] == 0).all()
        check(random(2, 5, 128), name)
    else:
        check(x, name)
    for empty in (torch.zeros(1, 3, 128), -torch.zeros(1, 3, 128)):
        quantized = inputs_of(FORMS[name]).quantize(empty, tensors_of(name))
        assert (quantized.codes.float() == 0).all()
        assert quantized.scale.isfinite().all()
        assert (quantized.scale > 0).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", FORMS)
def test_what_is_not_finite_stays_so(name, value):
    """No code may hide it: where the library's value isn't a number, ours isn't."""
    x = random(1, 4, 128)
    x[0, 2, 70] = value
    inputs, stored = inputs_of(FORMS[name]), tensors_of(name)
    ours = inputs.quantize(x, stored).dense(inputs.codes.group)
    theirs = library(x, FORMS[name], stored)[0]
    # A row at least: what a linear makes of it is the sum of a row.
    assert torch.equal(ours.isfinite().all(1), theirs.isfinite().all(1))


@pytest.mark.parametrize("name", FORMS)
def test_huge_and_tiny(name):
    for power in (-130, -126, -100, -30, 30, 100, 120):
        check_power(name, power)


def check_power(name: str, power: int) -> None:
    x = torch.ldexp(random(2, 4, 128).clamp(-8, 8).double(), torch.tensor(power)).float()
    if name == "float4 group 16 local":
        # A group's scale is a float8 under the global one, and so is one that is too small for it.
        stored = {
            "input_global_scale": (448 * 6 / x.abs().max()).clamp(2.0**-126, 2.0**126).view(1)
        }
        if power > -126:
            check(x, name, stored)
        check(x, name)
    elif "asymmetric" in name and power <= -126 and "static" not in name:
        # The range over 255 is no normal float: its zero point is a ratio of rounding errors.
        assert inputs_of(FORMS[name]).quantize(x, tensors_of(name)).scale.isfinite().all()
    else:
        check(x, name)


@pytest.mark.parametrize("name", [n for n in FORMS if "asymmetric" not in n])
def test_ties_go_to_even(name):
    """Values halfway between two codes, under a scale that is exactly one."""
    fields = FORMS[name]
    bits, kind = fields["num_bits"], fields["type"]
    if kind == "int":
        half = 1 << (bits - 1)
        largest, steps = (2 * half - 1) / 2, torch.arange(-half, half) + 0.5
        steps = steps.clamp(-largest, largest)
    else:
        values = {4: E2M1, 6: E2M3, 8: E4M3}[bits]
        values = values[values.isfinite()].unique()
        steps = (values[1:] + values[:-1]) / 2
        largest = float(values.max())
    x = steps.float()[torch.arange(1024) % len(steps)].view(1, 8, 128)
    # The largest magnitude of each group makes its scale one.
    x[:, :, ::16] = -largest if kind == "int" else largest
    stored = tensors_of(name) and {key: torch.ones(1) for key in tensors_of(name)}
    if name != "float4 group 16 local":
        check(x, name, stored)
        assert (inputs_of(fields).quantize(x, stored).scale == 1).all()
    else:
        check(x, name, stored)


@pytest.mark.parametrize("scale", [1e-4, 0.5, 3.0, 2.0**-126, 1e30])
@pytest.mark.parametrize("zero_point", [-128, -7, 0, 127])
@pytest.mark.parametrize("name", [name for name in FORMS if "static" in name])
def test_static_scales_clamp(name, zero_point, scale):
    x = random(2, 5, 128) * 300
    stored = {"input_scale": torch.tensor([scale])}
    if "asymmetric" in name:
        stored["input_zero_point"] = torch.tensor([zero_point], dtype=torch.int8)
    check(x, name, stored)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_static_scales_of_any_rank_and_dtype(shape, dtype):
    x = random(2, 5, 128)
    for name in ("int8 tensor static asymmetric", "float8 tensor static", "float4 group 16 local"):
        stored = {key: value.to(dtype) for key, value in tensors_of(name).items()}
        expected = inputs_of(FORMS[name]).quantize(
            x, {key: value.float() for key, value in stored.items()}
        )
        actual = inputs_of(FORMS[name]).quantize(
            x, {key: value.reshape(shape) for key, value in stored.items()}
        )
        assert torch.equal(actual.codes.float(), expected.codes.float())
        assert torch.equal(actual.scale, expected.scale)


@pytest.mark.parametrize("name", ["float4 group 32", "float6 group 32", "float8 group 32"])
def test_every_power_of_two_as_an_mx_scale(name):
    """A row each, with mantissas around where the scale rounds up; but at the very top, where the
    library's scale is infinite and its weight NaN."""
    mantissas = torch.tensor([1.0, 1.5, 1.7499, 1.75, 1.8749, 1.875, 1.9374, 1.9375, 1.9999])
    scales = torch.exp2(torch.arange(-149, 127, dtype=torch.float64)).view(-1, 1)
    largest = (mantissas.double() * scales).float()
    x = largest.flatten()[:-6].view(1, -1, 1).repeat(1, 1, 32)
    x[:, :, 1:] *= torch.linspace(-1, 1, 31)
    check(x, name)


@pytest.mark.parametrize("name", FORMS)
def test_codes_are_the_same_in_every_dtype_that_holds_them(name):
    inputs, x = inputs_of(FORMS[name]), random(2, 9, 256)
    plain = inputs.quantize(x, tensors_of(name))
    dtypes = [torch.bfloat16]
    dtypes += [torch.int8] if inputs.codes.limit in (8, 128) else []
    dtypes += [torch.float8_e4m3fn] if inputs.codes.type == "float8" else []
    for dtype in dtypes:
        other = inputs.quantize(x, tensors_of(name), dtype)
        assert other.codes.dtype == dtype
        assert torch.equal(other.codes.float(), plain.codes)
        assert torch.equal(other.scale.expand(18, -1), plain.scale.expand(18, -1))


@pytest.mark.parametrize("name", FORMS)
def test_blocks_of_rows_change_nothing_and_the_input_stays(name, monkeypatch):
    inputs, x = inputs_of(FORMS[name]), random(3, 40, 256)
    before = x.clone()
    whole = inputs.quantize(x, tensors_of(name))
    for elements in (1, 256 * 7):
        monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", elements)
        parts = inputs.quantize(x, tensors_of(name))
        assert torch.equal(parts.codes, whole.codes)
        assert torch.equal(parts.scale, whole.scale)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("int8 token", ("int", 128, None)),
        ("int4 token asymmetric", ("int", 255, None)),
        ("int8 group 32", ("int", 128, 32)),
        ("float8 token", ("float8", None, None)),
        ("float8 group 128", ("float8", None, 128)),
        ("float8 group 32", ("float", None, None)),
        ("float4 group 16 local", ("float", None, None)),
    ],
)
def test_what_the_codes_are(name, kind):
    codes = inputs_of(FORMS[name]).codes
    assert (codes.type, codes.limit, codes.group) == kind


def test_a_short_last_group_is_a_group_of_its_own():
    for size, columns in ((32, 80), (32, 20)):
        form = TensorFormat(8, "float", "group", size, dynamic=True)
        x = torch.randn(5, columns, generator=torch.Generator().manual_seed(0))
        q = Inputs(form, ()).quantize(x, {})
        assert q.codes.shape == x.shape and q.codes.is_contiguous()
        parts = [Inputs(form, ()).quantize(part, {}) for part in x.split(size, 1)]
        assert torch.equal(q.codes, torch.cat([part.codes for part in parts], 1))
        assert torch.equal(q.scale, torch.cat([part.scale for part in parts], 1))


def test_scales_rounded_up_to_powers_of_two():
    """As transformers' own deepgemm does it; NaN stays, and so does what is a power already."""
    form = TensorFormat(8, "float", "group", 4, dynamic=True, powers_of_two=True)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 8)
    x[0, :4] = 448 * 2.0**-3
    x[1, 1] = torch.nan
    q = Inputs(form, ()).quantize(x, {})
    scale = x.unflatten(1, (-1, 4)).abs().amax(2) / 448
    assert q.scale[1, 0].isnan() and q.scale[0, 0] == 2.0**-3
    assert torch.equal(q.scale[2:], _ceil_to_ue8m0(scale[2:]))
    codes = (x.unflatten(1, (-1, 4)) / q.scale.unsqueeze(2)).flatten(1)[2:]
    assert torch.equal(q.codes[2:], codes.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(
    ("outliers", "label", "spans"),
    [
        (6.0, "int8 token, outliers from 6 apart", True),
        (0.0, "int8 token, no outliers apart", False),
        (None, "int8 token", False),
    ],
)
def test_llm_int8s(outliers, label, spans):
    """Its own quantizer's, whether any columns are apart; [N, I] is one window."""
    inputs = Inputs(TensorFormat(8, "int", "token", dynamic=True, outliers=outliers), ())
    assert (inputs.label, inputs.spans_window) == (label, spans)
    x = torch.randn(2, 20, 16, generator=torch.Generator().manual_seed(0))
    x[0, 3, 5] = 9
    found, one = (inputs.quantize(t, {}, torch.int8) for t in (x, x.view(40, 16)))
    assert [c.tolist() for c in found.apart] == ([[5], []] if outliers else [])
    assert [c.tolist() for c in one.apart] == ([[5]] if outliers else [])
    if outliers is not None:
        expected = quantize_apart(x, outliers, torch.int8)
        assert torch.equal(found.codes, expected.codes) and torch.equal(found.scale, expected.scale)
