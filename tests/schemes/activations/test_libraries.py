"""Inputs against the rows of the libraries' own quantizers, which a golden file holds: of many sizes,
with ties, zeros of both signs, denormals and large values, in bfloat16, float16 and float32."""

from dataclasses import replace

import pytest
import torch
from support.golden_libraries import golden
from support.schemes import same

from scoremode.schemes.activations.inputs import Inputs, quantize_apart
from scoremode.schemes.fields import TensorFormat

ROWS = golden("inputs")["rows"]
INT8, FLOAT8 = (TensorFormat(8, kind, "token", dynamic=True) for kind in ("int", "float"))
FORMS = {
    "torchao-int8": replace(INT8, inverse=True, rounded=True),
    "torchao-float8": replace(FLOAT8, rounded=True),
    "quark-int8": replace(INT8, inverse=True),
    "quark-float8": FLOAT8,
}
QUARK_MX = TensorFormat(4, "float", "group", 32, dynamic=True, scale_dtype="uint8")
MODELOPT_MX = TensorFormat(8, "float", "group", 32, dynamic=True, powers_of_two=True)


def codes_of(case: dict[str, torch.Tensor]) -> torch.Tensor:
    """float32 [N, I]."""
    codes = case["codes"].flatten(0, -2)
    return (codes.view(torch.float8_e4m3fn) if codes.dtype == torch.uint8 else codes).float()


@pytest.mark.parametrize("dtype", ROWS)
@pytest.mark.parametrize("way", ["row", "tensor"])
@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_torchaos(kind, way, dtype):
    """The scale is rounded to the input's dtype; integers are multiplied by its inverse."""
    case, x = golden("inputs")[f"torchao-{kind}-{way}-{dtype}"], ROWS[dtype]
    form = FORMS[f"torchao-{kind}"]
    if way == "tensor":
        form, x = replace(form, strategy="tensor"), x[:, 12:]
    found = Inputs(form, ()).quantize(x, {})
    scale, codes = case["scale"].view(-1, 1), codes_of(case)
    if way == "tensor":
        assert scale.shape == (1, 1) and (found.scale == scale).all()
        assert torch.equal(found.codes, codes)
        return
    # Its float8 rows under a scale of zero are NaN, and so no score would be.
    kept = scale[:, 0] > 0
    same(found.scale[kept], scale[kept])
    assert torch.equal(found.codes[kept], codes[kept])
    assert (~kept).sum() == (0 if kind == "int8" else {"f32": 1}.get(dtype, 2))
    assert codes[~kept].isnan().any(1).all() and found.codes.isfinite().all()
    assert (found.scale[~kept] == 2.0**-23).all()


@pytest.mark.parametrize("dtype", ROWS)
@pytest.mark.parametrize("way", ["row", "tensor", "static"])
@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_quarks(kind, way, dtype):
    case, x = golden("inputs")[f"quark-{kind}-{way}-{dtype}"], ROWS[dtype]
    form, stored = FORMS[f"quark-{kind}"], {}
    if way == "tensor":
        form, x = replace(form, strategy="tensor"), x[:, 12:]
    elif way == "static":
        form, stored = (
            replace(form, strategy="tensor", dynamic=False),
            {"input_scale": case["static"]},
        )
    found = Inputs(form, tuple(stored)).quantize(x, stored)
    assert torch.equal(found.dense(None), case["dense"][0])


@pytest.mark.parametrize("dtype", ROWS)
def test_mx_of_quark_and_modelopt(dtype):
    found = Inputs(QUARK_MX, ()).quantize(ROWS[dtype], {})
    assert torch.equal(found.codes, golden("inputs")[f"quark-mxfp4-{dtype}"]["dense"][0])
    case = golden("inputs")[f"modelopt-mxfp8-{dtype}"]
    found = Inputs(MODELOPT_MX, ()).quantize(ROWS[dtype], {})
    scale = torch.exp2(case["scale"][0].float() - 127)
    # Its smallest is 2^-127, ours 2^-126, and of zeros whatever it is: products of such groups are 0.
    usual = scale > 2.0**-127
    assert usual.sum() > 80 and torch.equal(found.scale[usual], scale[usual])
    groups = usual.repeat_interleave(32, 1)
    assert torch.equal(found.codes[groups], codes_of(case)[groups])


@pytest.mark.parametrize("dtype", ROWS)
@pytest.mark.parametrize("threshold", [0.0, 6.0])
def test_bitsandbytes(threshold, dtype):
    """In float16; what that can't hold is a column apart, or no number (test_outliers.py)."""
    case = golden("inputs")[f"bitsandbytes-int8-{threshold:g}-{dtype}"]
    x = ROWS[dtype].clamp(-65504, 65504)
    found = quantize_apart(x, threshold, torch.int8)
    # A row of nothing but zeros and outliers is 0 · inf there, and whatever that is as an integer.
    kept = case["largest"] > 0
    assert kept.sum() >= 26 and torch.equal(found.codes[kept], case["codes"][kept])
    assert not found.codes[~kept].any()
    same(found.scale[:, 0], case["largest"] * (1 / 127))
    if threshold:
        assert torch.equal(found.apart[0], case["columns"])
