"""Ours against compressed-tensors: every weight the same, bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization.lifecycle.forward import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from schemes_helpers import (
    arguments,
    compress,
    decode,
    decompress,
    quantization,
    same,
    scheme_of,
    store,
    write_checkpoint,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import Variant, quantize_weight
from scoremode.schemes import pack_quantized
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve

GOLDEN = Path(__file__).parents[1] / "golden" / "pack_quantized_017.safetensors"
with safe_open(GOLDEN, "pt") as _file:
    GOLDEN_ABOUT = json.loads(_file.metadata()["about"])
GOLDEN_CASES = GOLDEN_ABOUT["cases"]

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
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def random_weight(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    return (weight + 0.5 * torch.randn(rows, 1, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("strategy", "size", "rows", "columns"), SHAPES)
def test_equals_the_library(strategy, size, rows, columns, bits, symmetric, dtype):
    args = arguments(bits, strategy, size, symmetric)
    stored = compress(random_weight(rows, columns, dtype), args)
    assert stored["weight_scale"].dtype == dtype
    expected = decompress(stored, args)
    scheme = scheme_of(args, (rows, columns))
    for out_dtype in {dtype, torch.float32}:
        same(decode(scheme, stored, out_dtype), expected)


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("strategy", "size", "shape"),
    [
        ("group", 32, (700, 416)),
        ("channel", None, (700, 411)),
        ("tensor", None, (700, 411)),
        ("channel", None, (2, (1 << 18) + 5)),
    ],
)
def test_equals_the_library_over_several_row_blocks(strategy, size, shape, bits, symmetric):
    assert shape[0] * shape[1] > pack_quantized._BLOCK_ELEMENTS
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


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_small_shape(data):
    bits = data.draw(st.sampled_from([4, 8]), "bits")
    strategy = data.draw(st.sampled_from(["group", "channel", "tensor"]), "strategy")
    rows = data.draw(st.integers(1, 20), "rows")
    size = data.draw(st.integers(1, 40), "size")
    groups = data.draw(st.integers(1, 4), "groups") if strategy == "group" else 1
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    symmetric = data.draw(st.booleans(), "symmetric")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    scales = {"group": (rows, groups), "channel": (rows, 1), "tensor": (1,)}[strategy]
    half = 1 << (bits - 1)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-half, half, shape, generator=generator).to(torch.int8)

    args = arguments(bits, strategy, size, symmetric)
    scale = torch.randn(scales, generator=generator).to(dtype)
    zero_point = None if symmetric else integers(*scales)
    stored = store(integers(rows, size * groups), scale, zero_point, args)
    scheme = scheme_of(args, (rows, size * groups))
    same(decode(scheme, stored, dtype), decompress(stored, args))


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "size"), [(172, 32), (172, 128), (45, 64), (9, 8)])
def test_last_group_may_be_short(columns, size, bits, symmetric):
    """The library refuses these, so they are cut from ones with whole groups."""
    args = arguments(bits, "group", size, symmetric)
    whole = random_weight(11, -(-columns // size) * size, torch.bfloat16)
    stored = compress(whole, args)
    expected = decompress(stored, args)[:, :columns]
    words = -(-columns * bits // 32)
    stored["weight_packed"] = stored["weight_packed"][:, :words].contiguous()
    same(decode(scheme_of(args, (11, columns)), stored, torch.float32), expected)


@pytest.mark.parametrize("shape", [(7, 7), (1, 9), (9, 1)])
@pytest.mark.parametrize("strategy", ["channel", "group"])
def test_one_scale_a_row_may_be_a_vector(strategy, shape):
    args = arguments(8, strategy, shape[1], symmetric=True)
    stored = compress(random_weight(*shape, torch.bfloat16), args)
    expected = decompress(stored, args)
    stored["weight_scale"] = stored["weight_scale"].flatten()
    same(decode(scheme_of(args, shape), stored, torch.float32), expected)


def test_scratch_is_reused_across_shapes_and_formats():
    scratch = Scratch()
    for seed, (strategy, size, rows, columns) in enumerate([*SHAPES, *reversed(SHAPES)]):
        for bits in (4, 8):
            for dtype in DTYPES:
                args = arguments(bits, strategy, size, symmetric=seed % 2 == 0)
                stored = compress(random_weight(rows, columns, dtype, seed), args)
                actual = decode(scheme_of(args, (rows, columns)), stored, dtype, scratch)
                same(actual, decompress(stored, args))


def test_decoding_leaves_the_stored_tensors_alone():
    args = arguments(8, "group", 32, symmetric=False)
    stored = compress(random_weight(5, 64, torch.float32), args)
    before = {name: tensor.clone() for name, tensor in stored.items()}
    decode(scheme_of(args, (5, 64)), stored, torch.float32)
    assert all(torch.equal(stored[name], tensor) for name, tensor in before.items())


def test_golden_file_names_the_release_and_covers_activation_order():
    assert GOLDEN_ABOUT["compressed-tensors"] == "0.17.0"
    ordered = {
        (case["num_bits"], case["symmetric"])
        for case in GOLDEN_CASES.values()
        if case["actorder"] == "group"
    }
    assert ordered == {(4, True), (4, False), (8, True), (8, False)}


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_equals_the_golden_file(name, tmp_path):
    tensors = load_file(GOLDEN)
    prefix = f"{name}."
    stored = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    expected = stored.pop("weight")
    config = quantization({"0": {"targets": ["Linear"], "weights": GOLDEN_CASES[name]}})
    model = write_checkpoint(tmp_path, {f"m.{k}": v for k, v in stored.items()}, config)
    scheme = resolve(open_checkpoint(model)).quantized["m"]
    for dtype in {expected.dtype, torch.float32}:
        same(decode(scheme, stored, dtype), expected)
    if "weight_g_idx" in stored:
        in_order = stored | {"weight_g_idx": stored["weight_g_idx"].sort().values}
        assert not torch.equal(decode(scheme, in_order, expected.dtype), expected)


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


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"strategy": "group", "size": 128, "bits": 4, "symmetric": True}, "W4A16 g128"),
        ({"strategy": "group", "size": 32, "bits": 8, "symmetric": False}, "W8A16 g32 asym"),
        ({"strategy": "channel", "size": None, "bits": 8, "symmetric": True}, "W8A16 channel"),
        ({"strategy": "tensor", "size": None, "bits": 4, "symmetric": False}, "W4A16 tensor asym"),
    ],
)
def test_labels(settings, label):
    assert scheme_of(arguments(**settings), (8, 128)).label == label


def test_label_of_activation_order():
    args = arguments(4, "group", 32, symmetric=True)
    assert scheme_of(args, (8, 128), has_g_idx=True).label == "W4A16 g32 g_idx"
