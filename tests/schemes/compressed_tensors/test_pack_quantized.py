"""Ours against compressed-tensors: every weight the same, bit for bit."""

import itertools

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from support.schemes import (
    DTYPES,
    arguments,
    build,
    compress,
    decode,
    decompress,
    dtype_name,
    factor,
    preset,
    random_weight,
    refusal,
    same,
    scheme_of,
    store,
)

from scoremode.demo.quantize import Variant, quantize_weight
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS

# (strategy, group size, rows, columns)
SHAPES = [
    ("group", 32, 1, 32),
    ("group", 32, 13, 160),
    ("group", 128, 16, 128),
    ("group", 128, 9, 384),
    ("group", 4, 5, 20),
    ("group", 1, 3, 7),
    ("group", 43, 8, 172),
    ("channel", None, 1, 1),
    ("channel", None, 11, 45),
    ("channel", None, 7, 7),
    ("channel", None, 8, 64),
    ("tensor", None, 1, 9),
    ("tensor", None, 6, 37),
]
BITS = range(2, 9)
# Where the two layouts differ.
STRADDLING = [3, 5, 6, 7]


def pad_to_int32(values: torch.Tensor, bits: int, packed_dim: int = 1) -> torch.Tensor:
    """int32 words of 32 // bits values each, as releases up to 0.17 packed them."""
    if packed_dim == 0:
        return pad_to_int32(values.T, bits).T.contiguous()
    per_word = 32 // bits
    rows, columns = values.shape
    words = torch.zeros(rows, -(-columns // per_word), dtype=torch.int64)
    for i in range(columns):
        code = values[:, i].long() + (1 << (bits - 1))
        words[:, i // per_word] |= code << (i % per_word * bits)
    return (words & 0xFFFFFFFF).to(torch.int64).sub((words >> 31 & 1) << 32).to(torch.int32)


def integers(shape: tuple[int, ...], bits: int, seed: int = 0) -> torch.Tensor:
    half, generator = 1 << (bits - 1), torch.Generator().manual_seed(seed)
    return torch.randint(-half, half, shape, generator=generator).to(torch.int8)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("strategy", "size", "rows", "columns"), SHAPES)
def test_equals_the_library(strategy, size, rows, columns, bits):
    for symmetric, dtype in itertools.product([True, False], DTYPES):
        args = arguments(bits, strategy, size, symmetric)
        stored = compress(random_weight(rows, columns, dtype), args)
        assert stored["weight_scale"].dtype == dtype
        expected = decompress(stored, args)
        scheme = scheme_of(args, (rows, columns))
        for out_dtype in {dtype, torch.float32}:
            same(decode(scheme, stored, out_dtype), expected)


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize(
    ("strategy", "size", "shape"),
    [
        ("group", 32, (1300, 416)),
        ("channel", None, (1300, 411)),
        ("tensor", None, (1300, 411)),
        ("channel", None, (2, (1 << 19) + 5)),
    ],
)
def test_equals_the_library_over_several_row_blocks(strategy, size, shape, bits, symmetric):
    assert shape[0] * shape[1] > BLOCK_ELEMENTS["cpu"]
    args = arguments(bits, strategy, size, symmetric)
    stored = compress(random_weight(*shape, torch.bfloat16), args)
    same(decode(scheme_of(args, shape), stored, torch.float32), decompress(stored, args))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("bits", [4, 8])
def test_every_byte(bits, dtype):
    """Each of the 256 bytes, with every zero point: a row for each, over and under zero."""
    half = 1 << (bits - 1)
    zero_point = torch.arange(-half, half, dtype=torch.int8).unsqueeze(1)
    byte = torch.arange(256)
    values = torch.stack((byte & 15, byte >> 4), dim=1).flatten() if bits == 4 else byte
    values = (values - half).to(torch.int8).expand(len(zero_point), -1).contiguous()
    scale = torch.linspace(-0.7, 1.3, len(zero_point), dtype=dtype).unsqueeze(1)
    args = arguments(bits, "channel", None, symmetric=False)
    stored = store(values, scale, zero_point, args)
    assert stored["weight_packed"][0].view(torch.uint8).tolist() == list(range(256))
    actual = decode(scheme_of(args, tuple(values.shape)), stored, dtype)
    same(actual, decompress(stored, args))
    same(actual, (values.to(dtype) - zero_point.to(dtype)) * scale)


@settings(max_examples=150)
@given(data=st.data())
def test_any_small_shape(data):
    bits = data.draw(st.integers(2, 8), "bits")
    strategy = data.draw(st.sampled_from(["group", "channel", "tensor"]), "strategy")
    rows = data.draw(st.integers(1, 20), "rows")
    size = data.draw(st.integers(1, 40), "size")
    groups = data.draw(st.integers(1, 4), "groups") if strategy == "group" else 1
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    symmetric = data.draw(st.booleans(), "symmetric")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    scales = {"group": (rows, groups), "channel": (rows, 1), "tensor": (1,)}[strategy]
    args = arguments(bits, strategy, size, symmetric)
    scale = torch.randn(scales, generator=generator).to(dtype)
    zero_point = None if symmetric else integers(scales, bits, 1)
    stored = store(integers((rows, size * groups), bits), scale, zero_point, args)
    scheme = scheme_of(args, (rows, size * groups))
    same(decode(scheme, stored, dtype), decompress(stored, args))


@pytest.mark.parametrize("shape", [(7, 7), (1, 9), (9, 1)])
@pytest.mark.parametrize("strategy", ["channel", "group"])
def test_one_scale_a_row_may_be_a_vector(strategy, shape):
    args = arguments(8, strategy, shape[1], symmetric=True)
    stored = compress(random_weight(*shape, torch.bfloat16), args)
    expected = decompress(stored, args)
    stored["weight_scale"] = stored["weight_scale"].flatten()
    same(decode(scheme_of(args, shape), stored, torch.float32), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=dtype_name)
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (4, None), (8, 32), (8, None)])
@pytest.mark.parametrize("shape", [(1, 32), (13, 160), (16, 96)])
def test_demo_packs_what_the_library_packs(shape, bits, size, dtype):
    weight = random_weight(*shape, dtype)
    ours = quantize_weight(weight, Variant("variant", bits, size))
    args = arguments(bits, "group" if size else "channel", size, symmetric=True)
    library = compress(weight.float(), args)
    same(ours["weight_scale"], library["weight_scale"].to(dtype))
    assert torch.equal(ours["weight_shape"], library["weight_shape"])
    zero_point = torch.zeros_like(ours["weight_scale"], dtype=torch.int8)
    scale = ours["weight_scale"].float()
    values = quantize(weight.float(), scale, zero_point, args, dtype=torch.int8)
    assert torch.equal(ours["weight_packed"], pack_to_int32(values, bits))
    stored = dict(ours)
    same(decode(scheme_of(args, shape), stored, dtype), decompress(stored, args))


def test_demo_packs_columns_that_fill_no_word():
    weight = random_weight(5, 45, torch.float32)
    for bits in (4, 8):
        library = compress(weight, arguments(bits, "channel", None, symmetric=True))
        ours = quantize_weight(weight, Variant("variant", bits, None))
        assert torch.equal(ours["weight_packed"], library["weight_packed"])


TOKEN = QuantizationArgs(num_bits=8, strategy="token", dynamic=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("strategy", ["group", "channel", "tensor"])
def test_codes_are_exact(strategy, bits, symmetric, dtype):
    """Every integer with every zero point: differences reach ±(2^bits - 1)."""
    half = 1 << (bits - 1)
    args = arguments(bits, strategy, 2 * half, symmetric)
    rows = 2 * half if strategy != "tensor" else 3
    values = torch.arange(-half, half).to(torch.int8).expand(rows, -1).contiguous()
    zero_point = None if symmetric else torch.arange(-half, half).to(torch.int8).unsqueeze(1)
    scale = torch.linspace(-0.7, 1.3, rows, dtype=dtype).unsqueeze(1)
    if strategy == "tensor":
        scale, zero_point = scale[:1, 0], None if zero_point is None else zero_point[:1, 0]
    stored = store(values, scale, zero_point, args)
    scheme = build(stored, args)
    expected = decompress(stored | {"weight_scale": scale.double()}, args)
    for code_dtype in (torch.bfloat16, torch.float32, *([torch.int8] if symmetric else [])):
        codes, spread = factor(scheme, stored, code_dtype)
        assert torch.equal(codes.double() * spread, expected)
    assert codes.double().abs().max() <= scheme.codes.limit
    assert symmetric or strategy == "tensor" or codes.double().max() == scheme.codes.limit


def columns_by_widths(bits: int) -> dict[bool, int]:
    """A number of values whose widths in the two layouts are the same (True), and differ."""
    per_word = 32 // bits
    found = {}
    for n in range(1000, per_word, -1):
        found[-(-n // per_word) == -(-n * bits // 32)] = n
    return found


VERSIONS = {
    "0.9.4": False, "0.17.0": False, "0.17.1": False, "0.17.1.post1": False, "0.16.0": False,
    "0.17.0.dev12+gabc": False, "0.17.0a20260501": False, "0.18.0": True, "0.18.1": True,
    "0.18.1a20260806": True, "0.18.1.dev0+gac8e2ba.d20260813": True, "0.20.0": True, "1.0.0": True,
}  # fmt: skip
UNDECIDED = [
    *("0.17.2a20260701", "0.17.1.dev6+g077e752", "0.17.2dev1", "0.18.0.dev3", "0.18.0a20260801"),
    *("0.18.0rc1", None, "", "derived", "main"),
]


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "padded"])
@pytest.mark.parametrize("bits", STRADDLING)
def test_widths_tell_the_layout(bits, dense, symmetric):
    """Whatever the config's version says."""
    columns = columns_by_widths(bits)[False]
    values, zero_point = integers((columns, columns), bits), integers((columns, 1), bits, 1)
    pack = pack_to_int32 if dense else pad_to_int32
    args = arguments(bits, "channel", None, symmetric)
    scale = torch.linspace(0.01, 2, columns, dtype=torch.bfloat16).unsqueeze(1)
    stored = store(values, scale, None, args) | {"weight_packed": pack(values, bits)}
    minus = 0
    if not symmetric:
        stored["weight_zero_point"] = pack(zero_point, bits, packed_dim=0)
        minus = zero_point.bfloat16()
    for version in ("0.17.0", "0.20.0", None):
        scheme = build(stored, args, version=version)
        assert (scheme.elements.layout == "dense") is dense
        same(decode(scheme, stored, torch.bfloat16), (values.bfloat16() - minus) * scale)


@pytest.mark.parametrize(("version", "dense"), VERSIONS.items())
@pytest.mark.parametrize("bits", STRADDLING)
def test_the_version_decides_where_widths_coincide(bits, version, dense):
    columns = columns_by_widths(bits)[True]
    values = integers((3, columns), bits)
    packed = {True: pack_to_int32(values, bits), False: pad_to_int32(values, bits)}
    assert packed[True].shape == packed[False].shape
    assert not torch.equal(packed[True], packed[False])
    args = arguments(bits, "channel", None, symmetric=True)
    stored = store(values, torch.ones(3, 1), None, args) | {"weight_packed": packed[dense]}
    same(decode(build(stored, args, version=version), stored, torch.float32), values.float())


@pytest.mark.parametrize("version", UNDECIDED)
@pytest.mark.parametrize("bits", STRADDLING)
def test_neither_width_nor_version_decides(bits, version):
    columns = columns_by_widths(bits)[True]
    args = arguments(bits, "channel", None, symmetric=True)
    stored = store(integers((3, columns), bits), torch.ones(3, 1), None, args)
    assert refusal(stored, args, version=version) == (
        f"m: its {bits}-bit values may be packed in either of two layouts, and the config's version "
        f"is {version!r}"
    )


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "padded"])
@pytest.mark.parametrize("bits", STRADDLING)
def test_zero_points_can_tell_the_layout_of_the_weights(bits, dense):
    """And weights that of zero points: one module is packed by one release."""
    same_width, other = (columns_by_widths(bits)[key] for key in (True, False))
    args = arguments(bits, "channel", None, symmetric=False)
    pack = pack_to_int32 if dense else pad_to_int32
    for rows, columns in ((other, same_width), (same_width, other)):
        values, zero_point = integers((rows, columns), bits), integers((rows, 1), bits, 1)
        stored = store(values, torch.ones(rows, 1), None, args)
        stored["weight_packed"] = pack(values, bits)
        stored["weight_zero_point"] = pack(zero_point, bits, packed_dim=0)
        scheme = build(stored, args, version=None)
        same(decode(scheme, stored, torch.float32), values.float() - zero_point.float())


@pytest.mark.parametrize("bits", STRADDLING)
def test_two_layouts_in_one_module(bits):
    size = columns_by_widths(bits)[False]
    args = arguments(bits, "channel", None, symmetric=False)
    values, zero_point = integers((size, size), bits), integers((size, 1), bits, 1)
    stored = store(values, torch.ones(size, 1), zero_point, args)
    stored["weight_packed"] = pad_to_int32(values, bits)
    expected = "m: its weights and zero points are packed in different layouts"
    assert refusal(stored, args) == expected


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", STRADDLING)
def test_within_one_word_both_layouts_are_one(bits, symmetric):
    size = 32 // bits
    values, zero_point = integers((size, size), bits), integers((size, 1), bits, 1)
    args = arguments(bits, "channel", None, symmetric)
    stored = store(values, torch.ones(size, 1), None if symmetric else zero_point, args)
    assert torch.equal(stored["weight_packed"], pad_to_int32(values, bits))
    actual = decode(build(stored, args, version=None), stored, torch.float32)
    same(actual, values.float() - (0 if symmetric else zero_point.float()))


def test_a_preset_whose_meaning_moved_is_caught_by_its_shapes():
    """W8A16 was one scale a channel once, and is groups of 128 now."""
    stored = compress(random_weight(8, 256, torch.float32), arguments(8, "channel", None, True))
    scheme, _ = preset("W8A16")
    assert "weight_scale has shape [8, 1], expected [8, 2]" in refusal(stored, scheme)
