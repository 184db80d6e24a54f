"""int-quantized, and naive-quantized of integers: every int8, under every zero point."""

import pytest
import torch
from schemes_helpers import (
    DTYPES,
    arguments,
    build,
    compress,
    decode,
    decompress,
    dtype_name,
    factor,
    group,
    random_weight,
    refusal,
    same,
)

from scoremode.errors import UnsupportedFormat

FORMS = ["int-quantized", "naive-quantized"]
PLACES = [
    ("tensor", None, (1, 9)),
    ("tensor", None, (6, 37)),
    ("channel", None, (1, 1)),
    ("channel", None, (11, 45)),
    ("group", 32, (5, 96)),
    ("group", 9, (5, 45)),
    ("group", 45, (1, 45)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", [2, 4, 7, 8])
@pytest.mark.parametrize(("strategy", "size", "shape"), PLACES)
def test_equals_the_library(strategy, size, shape, bits, symmetric, form, dtype):
    args = arguments(bits, strategy, size, symmetric)
    stored = compress(random_weight(*shape, dtype), args, form)
    assert stored["weight"].dtype == torch.int8
    scheme, expected = build(stored, args, form), decompress(stored, args, form)
    assert scheme.shape == shape
    for out_dtype in {dtype, torch.float32}:
        same(decode(scheme, stored, out_dtype), expected)
    exact = decompress(stored | {"weight_scale": stored["weight_scale"].double()}, args, form)
    for code_dtype in (torch.bfloat16, torch.float32, *([torch.int8] if symmetric else [])):
        codes, scale = factor(scheme, stored, code_dtype)
        assert torch.equal(codes.double() * scale, exact)
    assert codes.double().abs().max() <= scheme.codes.limit


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_every_byte_under_every_zero_point(dtype):
    values = torch.arange(-128, 128).to(torch.int8)
    stored = {
        "weight": values.repeat(256, 1),
        "weight_scale": torch.linspace(-0.7, 1.3, 256, dtype=dtype).unsqueeze(1),
        "weight_zero_point": values.unsqueeze(1).clone(),
    }
    args = arguments(8, "channel", None, symmetric=False)
    scheme = build(stored, args, FORMS[0])
    for out_dtype in DTYPES:
        same(decode(scheme, stored, out_dtype), decompress(stored, args, FORMS[0]))
    codes, _ = factor(scheme, stored, torch.bfloat16)
    assert torch.equal(codes.int(), values.int() - values.int().unsqueeze(1))
    assert codes.abs().max() == scheme.codes.limit == 255


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize(("columns", "size"), [(172, 32), (45, 64), (9, 8)])
def test_last_group_may_be_short(columns, size, symmetric):
    """The library refuses these, so they are cut from ones with whole groups."""
    args = arguments(4, "group", size, symmetric)
    stored = compress(random_weight(11, -(-columns // size) * size, torch.bfloat16), args, FORMS[0])
    expected = decompress(stored, args, FORMS[0])[:, :columns]
    stored["weight"] = stored["weight"][:, :columns].contiguous()
    same(decode(build(stored, args, FORMS[0]), stored, torch.bfloat16), expected)


@pytest.mark.parametrize("shape", [(7,), (7, 1)], ids=str)
def test_one_scale_and_zero_point_a_row_may_be_vectors(shape):
    args = arguments(8, "channel", None, symmetric=False)
    stored = compress(random_weight(7, 7, torch.bfloat16), args, FORMS[0])
    expected = decompress(stored, args, FORMS[0])
    for name in ("weight_scale", "weight_zero_point"):
        stored[name] = stored[name].reshape(shape)
    same(decode(build(stored, args, FORMS[0]), stored, torch.bfloat16), expected)


@pytest.mark.parametrize(
    ("weights", "inputs", "label"),
    [
        ({}, None, "W8A16 channel"),
        ({}, {"num_bits": 8, "strategy": "token", "dynamic": True}, "W8A8 channel"),
        (
            {"symmetric": False},
            {"num_bits": 4, "strategy": "token", "dynamic": True},
            "W8A4 channel asym",
        ),
        (
            {"num_bits": 4},
            {"type": "float", "strategy": "token", "dynamic": True},
            "W4AFP8 channel",
        ),
    ],
)
def test_labels(weights, inputs, label):
    fields = {"num_bits": 8, "strategy": "channel", "group_size": None} | weights
    args = arguments(fields["num_bits"], "channel", None, fields.get("symmetric", True))
    stored = compress(random_weight(7, 8, torch.bfloat16), args, FORMS[0])
    scheme = build(stored, group(**fields) | {"input_activations": inputs}, FORMS[0])
    assert scheme.label == label


@pytest.mark.parametrize(
    ("symmetric", "suffix", "change", "words"),
    [
        (True, "weight", lambda t: t.view(torch.uint8), "weight has dtype U8, expected I8"),
        (True, "weight", lambda t: t.float(), "weight has dtype F32, expected I8"),
        (True, "weight_scale", lambda t: t.repeat(1, 2), "expected [7, 1]"),
        (
            True,
            "weight_zero_point",
            lambda t: torch.zeros(7, 1).char(),
            "the config says symmetric",
        ),
        (
            False,
            "weight_zero_point",
            lambda t: t.int(),
            "weight_zero_point has dtype I32, expected I8",
        ),
        (False, "weight_zero_point", lambda t: t[:1], "shape [1, 1], expected [7, 1]"),
        (False, "weight_zero_point", lambda t: None, "its tensor weight_zero_point is missing"),
    ],
)
def test_tensors_that_do_not_fit(symmetric, suffix, change, words):
    args = arguments(8, "channel", None, symmetric)
    stored = compress(random_weight(7, 8, torch.bfloat16), args, FORMS[0])
    changed = stored | {suffix: change(stored.get(suffix))}
    assert words in refusal({k: v for k, v in changed.items() if v is not None}, args, FORMS[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_bits": 16}, "weights int16 channel"),
        ({"strategy": "block", "block_structure": [8, 8]}, "weights int8 block 8x8"),
        ({"actorder": "group"}, "weights int8 channel in activation order group"),
        ({"type": "float"}, "weights float8 channel"),
    ],
)
def test_fields_that_the_format_does_not_have(change, words):
    stored = compress(
        random_weight(7, 8, torch.bfloat16), arguments(8, "channel", None, True), FORMS[0]
    )
    fields = group(**{"num_bits": 8, "strategy": "channel", "group_size": None} | change)
    message = refusal(stored, fields, FORMS[0], error=UnsupportedFormat)
    assert message == f"m: int-quantized with {words} is not supported"
