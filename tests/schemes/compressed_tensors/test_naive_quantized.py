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
    random_weight,
    refusal,
    same,
)

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


@pytest.mark.parametrize("shape", [(7,), (7, 1)], ids=str)
def test_one_scale_and_zero_point_a_row_may_be_vectors(shape):
    args = arguments(8, "channel", None, symmetric=False)
    stored = compress(random_weight(7, 7, torch.bfloat16), args, INT_FORMS[0])
    expected = decompress(stored, args, INT_FORMS[0])
    for name in ("weight_scale", "weight_zero_point"):
        stored[name] = stored[name].reshape(shape)
    same(decode(build(stored, args, INT_FORMS[0]), stored, torch.bfloat16), expected)
