"""Every format's labels, short last groups and odd places in a file; what does not fit is refused."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from support.schemes import (
    arguments,
    build,
    compress,
    decode,
    decompress,
    preset,
    random_weight,
    refusal,
    same,
)

from scoremode.errors import UnsupportedFormat


def floats(strategy: str, **more) -> QuantizationArgs:
    return QuantizationArgs(num_bits=8, type="float", strategy=strategy, **more)


# The library's arguments, its format, and O x I.
FORMS = {
    "pack": (arguments(4, "group", 32, True), "pack-quantized", (8, 64)),
    "pack3": (arguments(3, "group", 32, False), "pack-quantized", (8, 192)),
    "pack8": (arguments(8, "channel", None, True), "pack-quantized", (8, 64)),
    "int": (arguments(8, "channel", None, True), "int-quantized", (7, 8)),
    "int asym": (arguments(8, "channel", None, False), "int-quantized", (7, 8)),
    "int4 groups": (arguments(4, "group", 32, False), "int-quantized", (11, 192)),
    "float": (floats("channel"), "float-quantized", (11, 45)),
    "float tensor": (floats("tensor"), "float-quantized", (11, 45)),
    "float group": (floats("group", group_size=9), "float-quantized", (11, 45)),
    "float block": (floats("block", block_structure=[4, 8]), "float-quantized", (11, 45)),
    "nvfp4": (*preset("NVFP4A16"), (5, 80)),
    "mx4": (*preset("MXFP4A16"), (5, 192)),
    "mx6": (*preset("MXFP6A16"), (5, 192)),
    "mx8": (*preset("MXFP8A16"), (5, 192)),
}


def stored_as(name: str) -> dict[str, torch.Tensor]:
    given, form, shape = FORMS[name]
    return compress(random_weight(*shape, torch.bfloat16), given, form)


def group_of(name: str, inputs: dict | None = None, **change) -> dict:
    given = FORMS[name][0]
    weights = getattr(given, "weights", given).model_dump(mode="json") | change
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs}


TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FLOAT_TOKEN = TOKEN | {"type": "float"}


@pytest.mark.parametrize(
    ("name", "inputs", "label"),
    [
        ("pack", None, "W4A16 g32"),
        ("pack3", None, "W3A16 g32 asym"),
        ("pack8", None, "W8A16 channel"),
        ("pack", TOKEN, "W4A8 g32"),
        ("pack", TOKEN | {"num_bits": 4}, "W4A4 g32"),
        ("pack", FLOAT_TOKEN, "W4AFP8 g32"),
        ("pack", TOKEN | {"strategy": "tensor"}, "W4A8 tensor g32"),
        ("pack", TOKEN | {"strategy": "tensor", "symmetric": False}, "W4A8 tensor asym g32"),
        ("pack", TOKEN | {"strategy": "tensor", "dynamic": False}, "W4A8 static g32"),
        ("pack", TOKEN | {"strategy": "group", "group_size": 32}, "W4A8 group g32"),
        ("int", None, "W8A16 channel"),
        ("int", TOKEN, "W8A8 channel"),
        ("int asym", TOKEN | {"num_bits": 4}, "W8A4 channel asym"),
        ("float tensor", None, "FP8 W8A16 tensor"),
        ("float block", None, "FP8 W8A16 block 4x8"),
        ("float", FLOAT_TOKEN, "FP8_DYNAMIC"),
        ("float tensor", FLOAT_TOKEN, "FP8 tensor, inputs float8 token"),
        ("float group", FLOAT_TOKEN, "FP8 g9, inputs float8 token"),
        ("nvfp4", None, "NVFP4A16"),
        ("nvfp4", FLOAT_TOKEN, "NVFP4, inputs float8 token"),
        ("mx6", None, "MXFP6A16"),
    ],
)
def test_labels(name, inputs, label):
    stored = stored_as(name) | ({"input_scale": torch.ones(1)} if inputs else {})
    if inputs is None or inputs["dynamic"]:
        stored.pop("input_scale", None)
    scheme = build(stored, group_of(name, inputs), FORMS[name][1])
    assert scheme.label == label


@pytest.mark.parametrize(
    ("preset_name", "label"),
    [("MXFP4", "MXFP4"), ("MXFP4XFP8", "MXFP4xFP8"), ("MXFP6A8", "MXFP6A8"), ("MXFP8", "MXFP8")],
)
def test_labels_of_mx_with_quantized_inputs(preset_name, label):
    given, form = preset(preset_name)
    stored = compress(random_weight(5, 128, torch.bfloat16), given, form)
    assert build(stored, given, form).label == label


@pytest.mark.parametrize("name", ["pack", "pack3", "int4 groups", "nvfp4", "mx4", "mx6", "mx8"])
@pytest.mark.parametrize("cut", [4, 20])
def test_last_group_may_be_short(name, cut):
    """The library refuses these, so they are cut from ones with whole groups."""
    (given, form, (_, columns)), stored = FORMS[name], stored_as(name)
    expected = decompress(stored, given, form)[:, : columns - cut]
    weight = "weight" if "weight" in stored else "weight_packed"
    bits = getattr(given, "weights", given).num_bits
    width = columns - cut
    if weight == "weight_packed":
        unit = 32 if stored[weight].dtype == torch.int32 else 8
        width = -(-width * bits // unit)
    stored[weight] = stored[weight][:, :width].contiguous()
    if "weight_shape" in stored:
        stored["weight_shape"] = torch.tensor(expected.shape)
    if (groups := -(-(columns - cut) // 16)) < stored["weight_scale"].shape[1]:
        stored["weight_scale"] = stored["weight_scale"][:, :groups].contiguous()
    same(decode(build(stored, given, form), stored, torch.bfloat16), expected)


@pytest.mark.parametrize("name", ["float", "nvfp4", "mx4", "mx6", "mx8"])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_odd_places_in_the_file(name, offset):
    """Views that begin anywhere."""
    (given, form, _), stored = FORMS[name], stored_as(name)
    expected = decompress(stored, given, form)
    for suffix in ("weight", "weight_packed", "weight_scale"):
        if suffix in stored and stored[suffix].itemsize == 1:
            raw = stored[suffix].view(torch.uint8).flatten()
            moved = torch.cat((torch.zeros(offset, dtype=torch.uint8), raw))[offset:]
            stored[suffix] = moved.view(stored[suffix].dtype).view(stored[suffix].shape)
    same(decode(build(stored, given, form), stored, torch.bfloat16), expected)


@pytest.mark.parametrize(
    ("name", "suffix", "change", "words"),
    [
        ("int", "weight", lambda t: t.view(torch.uint8), "weight has dtype U8, expected I8"),
        ("int", "weight", lambda t: t.float(), "weight has dtype F32, expected I8"),
        ("int", "weight_scale", lambda t: t.repeat(1, 2), "expected [7, 1]"),
        ("int", "weight_zero_point", lambda t: torch.zeros(7, 1).char(), "config says symmetric"),
        ("int asym", "weight_zero_point", lambda t: t.int(), "has dtype I32, expected I8"),
        ("int asym", "weight_zero_point", lambda t: t[:1], "shape [1, 1], expected [7, 1]"),
        ("int asym", "weight_zero_point", lambda t: None, "tensor weight_zero_point is missing"),
        ("float", "weight", lambda t: t.view(torch.uint8), "dtype U8, expected F8_E4M3"),
        ("float", "weight", lambda t: t.view(torch.float8_e5m2), "dtype F8_E5M2"),
        ("float", "weight_scale", lambda t: t.repeat(1, 2), "expected [11, 1]"),
        ("float", "weight_scale", lambda t: t[:1], "shape [1, 1], expected [11, 1]"),
        ("float tensor", "weight_scale", lambda t: t.repeat(11), "shape [11]"),
        ("float block", "weight_scale", lambda t: t.T, "shape [6, 3], expected [3, 6]"),
        ("float block", "weight_scale", lambda t: t[:, :-1], "[3, 5], expected [3, 6]"),
        ("nvfp4", "weight_scale", lambda t: t.float(), "dtype F32, expected F8_E4M3"),
        ("nvfp4", "weight_scale", lambda t: t[:, :-1], "shape [5, 4], expected [5, 5]"),
        ("nvfp4", "weight_global_scale", lambda t: t.repeat(2), "_global_scale has shape [2]"),
        # The library would divide in bfloat16, an engine in float32: nobody stores one.
        ("nvfp4", "weight_global_scale", lambda t: t.bfloat16(), "_global_scale has dtype BF16"),
        ("nvfp4", "weight_global_scale", lambda t: None, "weight_global_scale is missing"),
        ("mx4", "weight_packed", lambda t: t[:, :64], "weight_scale has shape [5, 6]"),
        ("mx4", "weight_packed", lambda t: t.view(torch.int8), "weight_packed has dtype I8"),
        ("mx4", "weight_packed", lambda t: t[0], "has shape [96], not a matrix's"),
        ("mx4", "weight_packed", lambda t: t[:, :0], "has shape [5, 0], not a matrix's"),
        ("mx6", "weight_packed", lambda t: t[:, :-1], "143 bytes, and four values take three"),
        ("mx8", "weight", lambda t: t.view(torch.uint8), "dtype U8, expected F8_E4M3"),
        ("mx8", "weight", lambda t: t.view(torch.float8_e5m2), "dtype F8_E5M2"),
        ("mx8", "weight_scale", lambda t: t.float(), "weight_scale has dtype F32, expected U8"),
        ("mx8", "weight_scale", lambda t: t.T, "has shape [6, 5], expected [5, 6]"),
    ],
)
def test_tensors_that_do_not_fit(name, suffix, change, words):
    given, form, _ = FORMS[name]
    stored = stored_as(name)
    stored[suffix] = change(stored.get(suffix))
    assert words in refusal({k: v for k, v in stored.items() if v is not None}, given, form)


BLOCK = {"strategy": "block", "group_size": None, "block_structure": [8, 8]}
CHANNEL = {"strategy": "channel", "group_size": None}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("pack", {"type": "float"}, "weights float4 group 32"),
        ("pack", {"num_bits": 1}, "weights int1 group 32"),
        ("pack", {"num_bits": 16}, "weights int16 group 32"),
        ("pack", BLOCK, "weights int4 block 8x8"),
        ("pack", {"strategy": "tensor_group"}, "weights int4 group 32"),
        ("int", {"num_bits": 16}, "weights int16 channel"),
        ("int", BLOCK, "weights int8 block 8x8"),
        ("int", {"actorder": "group"}, "weights int8 channel in activation order group"),
        ("int", {"type": "float"}, "weights float8 channel"),
        ("float", {"num_bits": 4}, "weights float4 channel"),
        ("float", {"num_bits": 6}, "weights float6 channel"),
        ("float", {"symmetric": False}, "weights float8 channel asymmetric"),
        ("float", {"strategy": "token"}, "weights float8 token"),
        ("float group", {"strategy": "tensor_group"}, "weights float8 group 9"),
        ("float group", {"group_size": 32, "scale_dtype": "uint8"}, "weights float8 group 32"),
        ("float group", {"actorder": "group"}, "weights float8 group 9"),
        ("nvfp4", {"group_size": 32}, "weights float4 group 32"),
        ("nvfp4", {"num_bits": 8}, "weights float8 group 16"),
        ("nvfp4", {"strategy": "group"}, "weights float4 group 16"),
        ("nvfp4", {"symmetric": False}, "weights float4 group 16 asymmetric"),
        *((f"mx{bits}", {"group_size": 16}, f"weights float{bits} group 16") for bits in (4, 6, 8)),
        ("mx4", {"num_bits": 5}, "weights float5 group 32"),
        ("mx6", {"type": "int"}, "weights int6 group 32"),
        ("mx8", {"symmetric": False}, "weights float8 group 32 asymmetric"),
        ("mx6", CHANNEL, "weights float6 channel"),
        ("mx8", {"scale_dtype": "float8_e4m3fn"}, "weights float8 group 32"),
    ],
)
def test_fields_that_the_format_does_not_have(name, change, words):
    form = FORMS[name][1]
    message = refusal(stored_as(name), group_of(name, **change), form, error=UnsupportedFormat)
    assert message.startswith(f"m: {form} with {words}") and message.endswith(" is not supported")
    if name.startswith("float"):
        message = refusal(
            stored_as(name), group_of(name, **change), "naive-quantized", error=UnsupportedFormat
        )
        assert message.startswith(f"m: naive-quantized with {words}")
