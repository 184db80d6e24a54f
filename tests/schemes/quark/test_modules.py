"""Schemes of Quark's checkpoints by their headers, and each way they can be wrong."""

import pytest
import torch
from support.families.quark import KINDS, config, quantize, spec
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize

WEIGHT = random_weight(6, 96, torch.bfloat16)
WIDE = random_weight(16, 96, torch.bfloat16)


def stored(kind: str = "fp8", **changes) -> dict[str, torch.Tensor]:
    tensors = quantize(WIDE if kind in ("int4", "uint4") else WEIGHT, kind) | changes
    return {f"m.{k}": t for k, t in tensors.items() if k != "dense" and t is not None}


@pytest.fixture
def resolved(tmp_path):
    def build(tensors, kind="fp8", **others):
        path = write_checkpoint(tmp_path, tensors, config(kind, **others))
        return resolve(open_checkpoint(path))

    return build


def test_scales_of_a_cache(tmp_path, resolved, refusal):
    tensors = stored(output_scale=torch.tensor(0.1))
    layers = {"*k_proj": {"output_tensors": KINDS["fp8"][1]}}
    assert resolved(tensors, kv_cache_quant_config=layers).quantized["m"].shape == (6, 96)
    # They are no part of the weight.
    assert summarize(open_checkpoint(tmp_path)).body_bits == 8 + 32 / 576
    words = "m: quantization method 'quark' with output_scale is not supported"
    assert refusal(tensors, error=UnsupportedFormat) == words


@pytest.mark.parametrize(
    ("tensors", "kind", "words"),
    [
        (stored(weight=None), "fp8", "m: quantized, and its tensor weight is missing"),
        (stored(), "ptpc", "m.weight_scale has shape [], expected [6]"),
        (stored("ptpc"), "fp8", "m.weight_scale has shape [6], expected [1]"),
        (stored("int8"), "ptpc", "m.weight has dtype I8, expected F8_E4M3"),
        (stored("mxfp4"), "int8", "m.weight has dtype U8, expected I8"),
        (stored("mxfp4", weight_scale=torch.ones(6, 2).byte()), "mxfp4", "[6, 2], expected [6, 3]"),
        (stored("mxfp4", weight_scale=torch.ones(6, 3)), "mxfp4", "has dtype F32, expected U8"),
        (stored(weight_scale=torch.ones(1).double()), "fp8", "dtype F64, expected BF16"),
        (
            stored("int8", weight_zero_point=torch.ones(6).char()),
            "int8",
            "m: its weight_zero_point is not zero, and the config says symmetric",
        ),
        (
            stored("int8", weight_zero_point=torch.zeros(6)),
            "int8",
            "m: its weight_zero_point is F32 [6], not zeros",
        ),
        (
            stored("int4", weight=torch.zeros(2, 96).int()),
            "int4",
            "m: 2 inputs are no whole number",
        ),
        (stored("uint4"), "int4", "m: its weight_zero_point is not zero, and the config says sym"),
        (
            stored("int4", weight_zero_point=None),
            "uint4",
            "its tensor weight_zero_point is missing",
        ),
        (
            # Quark before 1.0 did not transpose them.
            stored("int4", weight_scale=torch.ones(16, 3)),
            "int4",
            "m.weight_scale has shape [16, 3], expected [3, 16]",
        ),
        (
            stored("int4", weight_zero_point=torch.zeros(0, 2).int()),
            "int4",
            "m.weight_zero_point has shape [0, 2], expected [3, 2]",
        ),
        (
            stored("uint4", weight_zero_point=torch.zeros(3, 16).char()),
            "uint4",
            "m.weight_zero_point has dtype I8, expected I32",
        ),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, kind, words):
    assert words in refusal(tensors, kind)


def test_what_is_not_decoded_is_named(refusal):
    tensors = stored(input_rotation=torch.ones(2, 2))
    words = "m: quantization method 'quark' with input_rotation is not supported"
    assert refusal(tensors, error=UnsupportedFormat) == words
    words = "quantization method 'quark', and no tensor is a weight_scale: not decoded"
    assert refusal({"m.weight": torch.zeros(2, 2)}, error=UnsupportedFormat) == words
    group = KINDS["int8"][0] | {"qscheme": "per_group", "ch_axis": 1, "group_size": 32}
    words = "m: quantization method 'quark' with weights int8 group 32: not decoded"
    changed = {"global_quant_config": {"weight": group}}
    row = KINDS["int4"][0] | {"qscheme": "per_channel", "ch_axis": 0, "group_size": None}
    by_row = {"global_quant_config": {"weight": row}}
    assert refusal(stored("int4"), error=UnsupportedFormat, **by_row) == (
        "m: quantization method 'quark' with weights int4 channel: not decoded"
    )
    assert refusal(stored("int8"), error=UnsupportedFormat, **changed) == words


def test_modules_that_the_config_leaves_alone(refusal):
    assert refusal(stored(), exclude=["*"]) == "m: stored quantized, and exclude names it"
    words = "m: stored quantized, and the config says nothing of its weight"
    assert refusal(stored(), layer_quant_config={"m": {}}) == words


def test_blocks_of_float8(resolved, refusal):
    """As attention beside MXFP4 experts has them; the last blocks may be short."""
    weight = spec("fp8_e4m3", "per_block", block_size=[4, 64])
    own = {"global_quant_config": {"weight": weight, "input_tensors": None}}
    codes, scale = WEIGHT.to(torch.float8_e4m3fn), torch.rand(2, 2) + 0.5
    tensors = {"m.weight": codes, "m.weight_scale": scale}
    scheme = resolved(tensors, **own).quantized["m"]
    out = torch.empty(6, 96)
    scheme.decode({"weight": codes, "weight_scale": scale}, out, Scratch())
    whole = scale.repeat_interleave(4, 0)[:6].repeat_interleave(64, 1)[:, :96]
    assert torch.equal(out, codes.float() * whole)
    short = tensors | {"m.weight_scale": torch.ones(1, 2)}
    assert "m.weight_scale has shape [1, 2], expected [2, 2]" in refusal(short, **own)
