"""NVFP4: every element under every local scale, and global scales that divide."""

import pytest
import torch
from support.schemes import (
    DTYPES,
    build,
    compress,
    decode,
    decompress,
    factor,
    preset,
    random_weight,
    refusal,
    same,
)

from scoremode.errors import UnsupportedFormat

SCHEME, FORM = preset("NVFP4A16")


def every_code(whole: float) -> dict[str, torch.Tensor]:
    codes = torch.arange(16)
    packed = (codes[0::2] | codes[1::2] << 4).to(torch.uint8)
    scale = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).unsqueeze(1)
    return {
        "weight_packed": packed.repeat(256, 1),
        "weight_scale": scale,
        "weight_global_scale": torch.tensor([whole]),
    }


@pytest.mark.parametrize("whole", [1.0, 3.0, 0.1, 37.3, 2688.0, 1e-30, 1e30, -5.0])
def test_every_element_under_every_scale(whole):
    """Negative, subnormal and NaN local scales too: bf16(e2m1 · (scale / global))."""
    stored = every_code(whole)
    scheme, expected = build(stored, SCHEME), decompress(stored, SCHEME, FORM)
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype), expected)


def test_the_global_scale_divides():
    stored = every_code(4.0)
    scheme = build(stored, SCHEME)
    weight = decode(scheme, stored, torch.float32)
    # Local scale 1.0 has the code 0x38; 6.0 is element 7.
    assert weight[0x38, 7] == 6.0 / 4.0
    codes, scale = factor(scheme, stored, torch.bfloat16)
    assert codes[0x38, 7] == 6.0
    assert (scale == 0.25).all()


def test_elements_times_local_scales_are_exact_in_bfloat16():
    stored = every_code(3.0)
    codes, scale = factor(build(stored, SCHEME), stored, torch.bfloat16)
    wide, _ = factor(build(stored, SCHEME), stored, torch.float32)
    elements = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    exact = stored["weight_scale"].double() * torch.cat((elements, -elements))
    same(codes.double(), exact)
    same(wide.double(), exact)
    assert torch.equal(scale.float(), (1 / torch.tensor(3.0)).expand(256, 16))


@pytest.mark.parametrize("columns", [8, 16, 34, 172])
def test_last_group_may_be_short(columns):
    """The library refuses these, so they are cut from ones with whole groups."""
    stored = compress(random_weight(11, -(-columns // 16) * 16, torch.bfloat16), SCHEME)
    expected = decompress(stored, SCHEME)[:, :columns]
    stored["weight_packed"] = stored["weight_packed"][:, : columns // 2].contiguous()
    same(decode(build(stored, SCHEME), stored, torch.bfloat16), expected)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_one_global_scale_of_any_rank(shape):
    stored = every_code(37.3)
    expected = decompress(stored, SCHEME, FORM)
    stored["weight_global_scale"] = stored["weight_global_scale"].reshape(shape)
    same(decode(build(stored, SCHEME), stored, torch.bfloat16), expected)


def test_odd_places_in_the_file():
    stored = compress(random_weight(5, 80, torch.bfloat16), SCHEME)
    expected = decompress(stored, SCHEME)
    for name in ("weight_packed", "weight_scale"):
        raw = stored[name].view(torch.uint8)
        moved = torch.cat((torch.zeros(1, dtype=torch.uint8), raw.flatten()))[1:]
        stored[name] = moved.view(stored[name].dtype).view(stored[name].shape)
    same(decode(build(stored, SCHEME), stored, torch.bfloat16), expected)


@pytest.mark.parametrize(
    ("suffix", "change", "words"),
    [
        ("weight_scale", lambda t: t.float(), "weight_scale has dtype F32, expected F8_E4M3"),
        ("weight_scale", lambda t: t[:, :-1], "weight_scale has shape [5, 4], expected [5, 5]"),
        ("weight_global_scale", lambda t: t.repeat(2), "weight_global_scale has shape [2]"),
        # The library would divide in bfloat16, an engine in float32: nobody stores one.
        ("weight_global_scale", lambda t: t.bfloat16(), "weight_global_scale has dtype BF16"),
        ("weight_global_scale", lambda t: None, "its tensor weight_global_scale is missing"),
    ],
)
def test_tensors_that_do_not_fit(suffix, change, words):
    stored = compress(random_weight(5, 80, torch.bfloat16), SCHEME)
    changed = {suffix: change(stored[suffix])}
    stored = {k: v for k, v in (stored | changed).items() if v is not None}
    assert words in refusal(stored, SCHEME)


@pytest.mark.parametrize(
    "change",
    [{"group_size": 32}, {"num_bits": 8}, {"strategy": "group"}, {"symmetric": False}],
    ids=str,
)
def test_fields_that_the_format_does_not_have(change):
    stored = compress(random_weight(5, 80, torch.bfloat16), SCHEME)
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
    } | change
    group = {"targets": ["Linear"], "weights": weights}
    assert "with weights float" in refusal(stored, group, FORM, error=UnsupportedFormat)


def test_inputs_of_another_kind_show_in_the_label():
    stored = compress(random_weight(5, 128, torch.bfloat16), SCHEME)
    group = SCHEME.model_dump(mode="json")
    group["input_activations"] = {
        "num_bits": 8,
        "type": "float",
        "strategy": "token",
        "dynamic": True,
    }
    assert build(stored, group, FORM).label == "NVFP4, inputs float8 token"
