"""Formats of keys and values against numpy, torch's float8, the gguf package and Sylvester's matrix."""

import numpy as np
import pytest
import torch
from support.kv_cache_formats import hadamard, of_numpy, states

from scoremode.engines.kv_formats import KvFormat, parse_kv_cache
from scoremode.engines.torch.kv_cache.formats import (
    check_head,
    largest_of,
    rotated,
    rounded,
    static_scale,
)
from scoremode.errors import UnsupportedModel

SIZE = 64


def form(name: str) -> KvFormat:
    return parse_kv_cache(name).k


@pytest.mark.parametrize(
    "name",
    [
        *(
            "fp8_e4m3",
            "fp8_e5m2",
            "fp8_e4m3-token",
            "int8-token",
            "int2-g32",
            "int4-g32",
            "int8-g64",
        ),
        *("int4-g16", "nvfp4", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_bit_of_another_implementation(name, dtype):
    x = states(dtype)
    ours = rounded(x, form(name))
    theirs = torch.from_numpy(of_numpy(x.float().numpy(), name)).to(dtype)
    assert ours.dtype == dtype and torch.equal(ours, theirs)
    assert not torch.equal(ours, x)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "int8", "nvfp4"])
def test_static_scales(name):
    x = states()
    largest = torch.from_numpy(np.abs(x.numpy()).max((0, 2, 3)))
    measured = largest_of(x, form(f"{name}-tensor"))
    assert torch.equal(measured, largest)
    top = {"fp8_e4m3": 448, "fp8_e5m2": 57344, "int8": 127, "nvfp4": 6 * 448}[name]
    scale = static_scale(measured, form(f"{name}-tensor"))
    assert scale.tolist() == [np.float32(np.float32(largest.max()) / np.float32(top))]
    ours = rounded(x, form(f"{name}-tensor"), scale)
    assert np.array_equal(ours.numpy(), of_numpy(x.numpy(), name, scale.numpy()))
    assert float(ours.abs().max()) == pytest.approx(float(largest.max()), rel=1e-6)
    if name == "nvfp4":
        return
    each = static_scale(measured, form(f"{name}-head"))
    by_head = rounded(x, form(f"{name}-head"), each)
    for head in range(3):
        wanted = of_numpy(x[:, head].numpy(), name, each[head].numpy())
        assert np.array_equal(by_head[:, head].numpy(), wanted)


def test_no_scale_of_zeros():
    zeros = torch.zeros(1, 2, 4, SIZE)
    for name in ("fp8_e4m3-tensor", "int8-head", "nvfp4-tensor"):
        scale = static_scale(largest_of(zeros, form(name)), form(name))
        assert bool((scale > 0).all()) and torch.equal(rounded(zeros, form(name), scale), zeros)


@pytest.mark.parametrize(("suffix", "many"), [("had", 32), ("had16", 16)])
def test_a_rotation_is_the_hadamard_matrix(suffix, many):
    """A head of 96 values has a rotation of 32: the largest power of two that divides it."""
    x = states(size=96)
    matrix = hadamard(many) / np.sqrt(many)
    wanted = (x.double().numpy().reshape(2, 3, 37, -1, many) @ matrix).reshape(x.shape)
    found = rotated(x, form(f"q8_0-{suffix}"))
    assert np.abs(found.numpy() - wanted).max() < 1e-4
    assert float((rotated(found, form(f"q8_0-{suffix}")) - x).abs().max()) < 1e-4
    codes = of_numpy(found.numpy(), "q8_0").astype(np.float64)
    back = (codes.reshape(2, 3, 37, -1, many) @ matrix).reshape(x.shape)
    assert np.abs(rounded(x, form(f"q8_0-{suffix}")).numpy() - back).max() < 1e-4


def test_a_rotation_is_for_large_channels():
    x = states(torch.bfloat16)
    plain, turned = (
        float((rounded(x, form(name)) - x).float().norm()) for name in ("q4_0", "q4_0-had")
    )
    assert turned < 0.8 * plain


def test_layouts_are_the_same_values():
    x = states()
    for name in ("int4-g32", "q4_0-had", "fp8_e4m3-token"):
        wanted = rounded(x, form(name))
        turned = x.transpose(1, 2).contiguous().transpose(1, 2)
        assert torch.equal(rounded(turned, form(name)), wanted)
        part = torch.cat([x, x], -1)[..., :SIZE]
        assert torch.equal(rounded(part, form(name)), wanted)
        assert torch.equal(x, states()), "the input is left as it was"


def test_pairs_are_put_beside_each_other():
    """As llama.cpp's conversion lays out a Llama's keys: i and i + D/2 become 2i and 2i + 1."""
    x = states()
    order = np.arange(SIZE).reshape(2, SIZE // 2).T.ravel()
    wanted = np.empty_like(x.numpy())
    wanted[..., order] = of_numpy(np.ascontiguousarray(x.numpy()[..., order]), "q4_0")
    assert np.array_equal(rounded(x, form("q4_0-paired")).numpy(), wanted)
    assert not torch.equal(rounded(x, form("q4_0")), rounded(x, form("q4_0-paired")))
    assert float((rounded(x, form("q8_0-paired-had")) - x).abs().max()) < 0.5


def test_as_they_are_and_in_16_bits():
    x = states()
    assert rounded(x, form("none")) is x
    assert torch.equal(
        rounded(x, form("f16")), torch.from_numpy(x.numpy().astype(np.float16)).float()
    )
    assert torch.equal(rounded(x, form("bf16")), x.bfloat16().float())


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_magnitudes_below_every_stored_scale_are_zero(name):
    """The inverse of a subnormal scale is infinite."""
    for size in (1e-45, 1e-40, 3e-39, 1e-30):
        x = torch.linspace(-size, size, SIZE).view(1, 1, 1, SIZE)
        assert torch.equal(rounded(x, form(name)), torch.zeros_like(x))


def test_what_is_no_number_stays_none():
    x = states()
    x[0, 0, 0, 9] = torch.nan
    for name in ("fp8_e4m3", "int8", "int4-g32", "q4_0", "q8_0", "q5_1", "nvfp4", "int8-had"):
        assert bool(rounded(x, form(name))[0, 0, 0, 9].isnan())


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        (
            "int4-g32",
            80,
            "layer 3: heads of 80 values .* into blocks of 32: --kv-cache int4-g32",
        ),
        (
            "q8_0-had64",
            96,
            "heads of 96 values don't divide into rotations of 64: --kv-cache q8",
        ),
        ("nvfp4", 8, "blocks of 16"),
        ("int8-had", 7, "rotations of 1"),
    ],
)
def test_heads_that_do_not_divide(name, size, said):
    with pytest.raises(UnsupportedModel, match=said):
        check_head(form(name), size, "layer 3")
    check_head(form(name), 128, "layer 3")
