"""NVFP4: every element under every local scale, and global scales that divide."""

import pytest
import torch
from support.schemes import DTYPES, build, decode, decompress, factor, preset, same

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


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_one_global_scale_of_any_rank(shape):
    stored = every_code(37.3)
    expected = decompress(stored, SCHEME, FORM)
    stored["weight_global_scale"] = stored["weight_global_scale"].reshape(shape)
    same(decode(build(stored, SCHEME), stored, torch.bfloat16), expected)
