"""MXFP4, MXFP6 and MXFP8: every element under every scale, as the library multiplies them."""

import pytest
import torch
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from support.schemes import (
    DTYPES,
    build,
    compress,
    decode,
    decompress,
    factor,
    preset,
    random_weight,
    same,
    write_checkpoint,
)

from scoremode.checkpoint.files import open_checkpoint

FORMS = {4: "mxfp4-pack-quantized", 6: "mxfp6-pack-quantized", 8: "mxfp8-quantized"}


def every_code(bits: int) -> dict[str, torch.Tensor]:
    """A row for each scale's code, and in it each element's."""
    scale = torch.arange(256).to(torch.uint8).unsqueeze(1)
    if bits == 8:
        codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
        return {"weight": codes.repeat(256, 1), "weight_scale": scale.repeat(1, 8)}
    if bits == 4:
        codes = torch.arange(32) % 16
        packed, groups = codes[0::2] | codes[1::2] << 4, 1
    else:
        codes = torch.arange(64)
        word = sum(codes[i::4] << 6 * i for i in range(4))
        packed, groups = torch.stack([word >> 8 * i & 255 for i in range(3)], dim=1).flatten(), 2
    return {
        "weight_packed": packed.to(torch.uint8).repeat(256, 1),
        "weight_scale": scale.repeat(1, groups),
    }


def library(bits: int, stored: dict) -> torch.Tensor:
    return decompress(stored, preset_name_to_scheme(f"MXFP{bits}A16", ["Linear"]), FORMS[bits])


@pytest.mark.parametrize("bits", FORMS)
def test_every_element_under_every_scale(bits):
    """Scale 0 is 2^-127, scale 255 infinite as in the library; float8 NaN stays NaN; -0.0 its sign."""
    stored = every_code(bits)
    scheme = build(stored, preset_name_to_scheme(f"MXFP{bits}A16", ["Linear"]), FORMS[bits])
    expected = library(bits, stored)
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype), expected)


@pytest.mark.parametrize("bits", FORMS)
def test_rounded_only_where_bfloat16_ends(bits):
    """The product of element and scale is exact above bfloat16's smallest subnormal."""
    stored = every_code(bits)
    scheme = build(stored, preset_name_to_scheme(f"MXFP{bits}A16", ["Linear"]), FORMS[bits])
    codes, scale = factor(scheme, stored, torch.float32)
    assert (scale == 1).all()
    scales = torch.ldexp(torch.ones(256).double(), torch.arange(256) - 127).unsqueeze(1)
    elements = codes[127].double()
    exact = (elements * scales)[:255]
    codes = codes[:255].double()
    overflows = exact.abs() > torch.finfo(torch.bfloat16).max
    assert codes[overflows].isinf().all()
    small = (exact / 2.0**-133).nan_to_num().frac() != 0
    assert bool(small.any()) is (bits == 8)
    assert torch.equal(
        codes[~(overflows | small)].nan_to_num(), exact[~(overflows | small)].nan_to_num()
    )
    assert ((codes - exact)[small & ~exact.isnan()].abs() <= 2.0**-134).all()


@pytest.mark.parametrize("bits", FORMS)
def test_scales_may_be_stored_as_e8m0(bits, tmp_path):
    name = f"MXFP{bits}A16"
    scheme, form = preset(name)
    stored = compress(random_weight(5, 96, torch.bfloat16), scheme, form)
    expected = decompress(stored, scheme, form)
    stored["weight_scale"] = stored["weight_scale"].view(torch.float8_e8m0fnu)
    checkpoint = open_checkpoint(
        write_checkpoint(tmp_path, {f"m.{k}": v for k, v in stored.items()})
    )
    read = {suffix: checkpoint.read(f"m.{suffix}") for suffix in stored}
    same(decode(build(read, scheme, form), read, torch.bfloat16), expected)


@pytest.mark.parametrize("scale_dtype", [None, "uint8", "torch.uint8"])
@pytest.mark.parametrize("bits", FORMS)
def test_the_formats_name_is_enough(bits, scale_dtype):
    """Older releases didn't write the scales' dtype."""
    stored = compress(random_weight(5, 96, torch.bfloat16), *preset(f"MXFP{bits}A16"))
    weights = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": weights | {"scale_dtype": scale_dtype}}
    same(decode(build(stored, group, FORMS[bits]), stored, torch.bfloat16), library(bits, stored))
