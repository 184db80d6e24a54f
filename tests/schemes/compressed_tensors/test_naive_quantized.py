"""float-, int- and naive-quantized: every float8 under scales of any place and dtype, every int8 under
every zero point."""

import itertools

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from support.schemes import (
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

FLOAT_FORMS = ["float-quantized", "naive-quantized"]
INT_FORMS = ["int-quantized", "naive-quantized"]
INT_PLACES = [
    ("tensor", None, (1, 9)),
    ("tensor", None, (6, 37)),
    ("channel", None, (1, 1)),
    ("channel", None, (11, 45)),
    ("group", 32, (5, 96)),
    ("group", 9, (5, 45)),
    ("group", 45, (1, 45)),
]
INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


def args_of(strategy: str, size: int | tuple[int, int] | None = None) -> QuantizationArgs:
    place = {"block": "block_structure", "group": "group_size"}.get(strategy)
    more = {place: list(size) if isinstance(size, tuple) else size} if place else {}
    return QuantizationArgs(num_bits=8, type="float", strategy=strategy, **more)


FLOAT_PLACES = [
    (args_of("tensor"), (1, 9)),
    (args_of("tensor"), (6, 37)),
    (args_of("channel"), (1, 1)),
    (args_of("channel"), (11, 45)),
    (args_of("group", 32), (5, 96)),
    (args_of("group", 9), (5, 45)),
    (args_of("block", (128, 128)), (128, 256)),
    (args_of("block", (128, 128)), (1, 1)),
    (args_of("block", (128, 128)), (130, 129)),
    (args_of("block", (128, 128)), (127, 383)),
    (args_of("block", (4, 8)), (13, 45)),
    (args_of("block", (8, 4)), (8, 45)),
    (args_of("block", (1, 7)), (5, 21)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("form", FLOAT_FORMS)
@pytest.mark.parametrize(
    ("args", "shape"), FLOAT_PLACES, ids=lambda v: str(v) if isinstance(v, tuple) else v.strategy
)
def test_floats_equal_the_library(args, shape, form, dtype):
    stored = compress(random_weight(*shape, dtype), args, form)
    assert stored["weight_scale"].dtype == dtype
    scheme, expected = build(stored, args, form), decompress(stored, args, form)
    assert scheme.shape == shape
    for out_dtype in DTYPES:
        same(decode(scheme, stored, out_dtype), expected)
    exact = decompress(stored | {"weight_scale": stored["weight_scale"].double()}, args, form)
    for code_dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float32):
        codes, scale = factor(scheme, stored, code_dtype)
        same(codes.double() * scale, exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_every_float8(dtype):
    """NaN stays NaN, -0.0 keeps its sign; scales that make results overflow and vanish."""
    codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.tensor([1.0, 0.0171, -3.0, 1e30, 1e-7, 2.0**-130, 0.0]).to(dtype).unsqueeze(1)
    args = args_of("channel")
    stored = {"weight": codes.repeat(7, 1), "weight_scale": scale}
    scheme = build(stored, args, FLOAT_FORMS[0])
    expected = decompress(stored, args, FLOAT_FORMS[0])
    assert expected[0].isnan().sum() == 2
    for out_dtype in DTYPES:
        same(decode(scheme, stored, out_dtype), expected)
    for code_dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float32):
        same(factor(scheme, stored, code_dtype)[0].float(), stored["weight"].float())


@pytest.mark.parametrize("columns", [1, 2, 31, 32, 33])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_odd_places_in_the_file(offset, columns):
    args = args_of("channel")
    stored = compress(random_weight(5, columns, torch.bfloat16), args, FLOAT_FORMS[0])
    expected = decompress(stored, args, FLOAT_FORMS[0])
    raw = torch.cat(
        (torch.zeros(offset, dtype=torch.uint8), stored["weight"].view(torch.uint8).flatten())
    )
    stored["weight"] = raw[offset:].view(torch.float8_e4m3fn).view(5, columns)
    assert stored["weight"].storage_offset() == offset
    same(decode(build(stored, args, FLOAT_FORMS[0]), stored, torch.bfloat16), expected)


@pytest.mark.parametrize(
    ("args", "shape"),
    [
        (args_of("channel"), (11,)),
        (args_of("tensor"), ()),
        (args_of("tensor"), (1,)),
        (args_of("tensor"), (1, 1)),
    ],
    ids=str,
)
def test_scales_with_fewer_dimensions(args, shape):
    stored = compress(random_weight(11, 45, torch.bfloat16), args, FLOAT_FORMS[0])
    expected = decompress(stored, args, FLOAT_FORMS[0])
    stored["weight_scale"] = stored["weight_scale"].reshape(shape)
    scheme = build(stored, args, FLOAT_FORMS[0])
    same(decode(scheme, stored, torch.float32), expected)
    assert factor(scheme, stored, torch.bfloat16)[1].shape == (11, 45)


def test_a_square_weight_with_a_vector_of_scales():
    """A vector is one scale a row; along columns it would fit as well."""
    args = args_of("channel")
    stored = compress(random_weight(7, 7, torch.bfloat16), args, FLOAT_FORMS[0])
    expected = decompress(stored, args, FLOAT_FORMS[0])
    stored["weight_scale"] = stored["weight_scale"].flatten()
    same(decode(build(stored, args, FLOAT_FORMS[0]), stored, torch.float32), expected)


@pytest.mark.parametrize(
    ("args", "inputs", "label"),
    [
        (args_of("tensor"), None, "FP8 W8A16 tensor"),
        (args_of("block", (128, 128)), None, "FP8 W8A16 block 128x128"),
        (args_of("channel"), INPUTS, "FP8_DYNAMIC"),
        (args_of("tensor"), INPUTS, "FP8 tensor, inputs float8 token"),
        (args_of("group", 9), INPUTS, "FP8 g9, inputs float8 token"),
    ],
    ids=str,
)
def test_labels_of_floats(args, inputs, label):
    stored = compress(random_weight(11, 45, torch.bfloat16), args, FLOAT_FORMS[0])
    group = {"targets": ["Linear"], "weights": args.model_dump(mode="json")}
    scheme = build(stored, group | {"input_activations": inputs}, FLOAT_FORMS[0])
    assert scheme.label == label


@pytest.mark.parametrize(
    ("args", "suffix", "change", "words"),
    [
        (args_of("channel"), "weight", lambda t: t.view(torch.uint8), "dtype U8, expected F8_E4M3"),
        (args_of("channel"), "weight", lambda t: t.view(torch.float8_e5m2), "dtype F8_E5M2"),
        (args_of("channel"), "weight_scale", lambda t: t.repeat(1, 2), "expected [11, 1]"),
        (args_of("channel"), "weight_scale", lambda t: t[:1], "shape [1, 1], expected [11, 1]"),
        (args_of("tensor"), "weight_scale", lambda t: t.repeat(11), "shape [11]"),
        (args_of("block", (4, 8)), "weight_scale", lambda t: t.T, "shape [6, 3], expected [3, 6]"),
        (args_of("block", (4, 8)), "weight_scale", lambda t: t[:, :-1], "[3, 5], expected [3, 6]"),
    ],
)
def test_floats_that_do_not_fit(args, suffix, change, words):
    stored = compress(random_weight(11, 45, torch.bfloat16), args, FLOAT_FORMS[0])
    stored[suffix] = change(stored[suffix])
    assert words in refusal(stored, args, FLOAT_FORMS[0])


@pytest.mark.parametrize("form", FLOAT_FORMS)
@pytest.mark.parametrize(
    "change",
    [
        {"num_bits": 4},
        {"num_bits": 6},
        {"symmetric": False},
        {"strategy": "token"},
        {"strategy": "tensor_group", "group_size": 16},
        {"strategy": "group", "group_size": 32, "scale_dtype": "uint8"},
        {"strategy": "group", "group_size": 9, "actorder": "group"},
    ],
    ids=str,
)
def test_fields_that_floats_do_not_have(form, change):
    stored = compress(random_weight(11, 45, torch.bfloat16), args_of("channel"), FLOAT_FORMS[0])
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"} | change
    message = refusal(
        stored, {"targets": ["Linear"], "weights": weights}, form, error=UnsupportedFormat
    )
    assert message.startswith(f"m: {form} with weights float")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": "block"}, "m: quantized by block, and its block_structure is not given"),
        ({"strategy": "group"}, "m: quantized by group, and its group size is not given"),
    ],
)
def test_a_place_without_its_size(change, words):
    stored = compress(random_weight(11, 45, torch.bfloat16), args_of("channel"), FLOAT_FORMS[0])
    weights = {"num_bits": 8, "type": "float"} | change
    assert refusal(stored, {"targets": ["Linear"], "weights": weights}, FLOAT_FORMS[0]) == words


@pytest.mark.parametrize("form", INT_FORMS)
@pytest.mark.parametrize("bits", [2, 4, 7, 8])
@pytest.mark.parametrize(("strategy", "size", "shape"), INT_PLACES)
def test_integers_equal_the_library(strategy, size, shape, bits, form):
    for symmetric, dtype in itertools.product([True, False], DTYPES):
        check_integers(strategy, size, shape, bits, symmetric, form, dtype)


def check_integers(strategy, size, shape, bits, symmetric, form, dtype) -> None:
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
    scheme = build(stored, args, INT_FORMS[0])
    for out_dtype in DTYPES:
        same(decode(scheme, stored, out_dtype), decompress(stored, args, INT_FORMS[0]))
    codes, _ = factor(scheme, stored, torch.bfloat16)
    assert torch.equal(codes.int(), values.int() - values.int().unsqueeze(1))
    assert codes.abs().max() == scheme.codes.limit == 255


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize(("columns", "size"), [(172, 32), (45, 64), (9, 8)])
def test_last_group_may_be_short(columns, size, symmetric):
    """The library refuses these, so they are cut from ones with whole groups."""
    args = arguments(4, "group", size, symmetric)
    stored = compress(
        random_weight(11, -(-columns // size) * size, torch.bfloat16), args, INT_FORMS[0]
    )
    expected = decompress(stored, args, INT_FORMS[0])[:, :columns]
    stored["weight"] = stored["weight"][:, :columns].contiguous()
    same(decode(build(stored, args, INT_FORMS[0]), stored, torch.bfloat16), expected)


@pytest.mark.parametrize("shape", [(7,), (7, 1)], ids=str)
def test_one_scale_and_zero_point_a_row_may_be_vectors(shape):
    args = arguments(8, "channel", None, symmetric=False)
    stored = compress(random_weight(7, 7, torch.bfloat16), args, INT_FORMS[0])
    expected = decompress(stored, args, INT_FORMS[0])
    for name in ("weight_scale", "weight_zero_point"):
        stored[name] = stored[name].reshape(shape)
    same(decode(build(stored, args, INT_FORMS[0]), stored, torch.bfloat16), expected)


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
def test_labels_of_integers(weights, inputs, label):
    fields = {"num_bits": 8, "strategy": "channel", "group_size": None} | weights
    args = arguments(fields["num_bits"], "channel", None, fields.get("symmetric", True))
    stored = compress(random_weight(7, 8, torch.bfloat16), args, INT_FORMS[0])
    scheme = build(stored, group(**fields) | {"input_activations": inputs}, INT_FORMS[0])
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
def test_integers_that_do_not_fit(symmetric, suffix, change, words):
    args = arguments(8, "channel", None, symmetric)
    stored = compress(random_weight(7, 8, torch.bfloat16), args, INT_FORMS[0])
    changed = stored | {suffix: change(stored.get(suffix))}
    assert words in refusal({k: v for k, v in changed.items() if v is not None}, args, INT_FORMS[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_bits": 16}, "weights int16 channel"),
        ({"strategy": "block", "block_structure": [8, 8]}, "weights int8 block 8x8"),
        ({"actorder": "group"}, "weights int8 channel in activation order group"),
        ({"type": "float"}, "weights float8 channel"),
    ],
)
def test_fields_that_integers_do_not_have(change, words):
    stored = compress(
        random_weight(7, 8, torch.bfloat16), arguments(8, "channel", None, True), INT_FORMS[0]
    )
    fields = group(**{"num_bits": 8, "strategy": "channel", "group_size": None} | change)
    message = refusal(stored, fields, INT_FORMS[0], error=UnsupportedFormat)
    assert message == f"m: int-quantized with {words} is not supported"
