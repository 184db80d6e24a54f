"""Blocks under one more factor."""

import pytest
import torch
from support.gguf.blocks import dequantized, random_blocks
from support.schemes import decode, factor, same

from scoremode.checkpoint.gguf.table import Layout
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.decoding import unpack
from scoremode.schemes.gguf import Blocks, Scaled, permuted

PACKED = random_blocks("NVFP4", 8, 3)
STORED = {"NVFP4": PACKED, "scale": torch.tensor([0.0123])}
SCHEME = Scaled(Blocks("NVFP4", (8, 192)))


@pytest.mark.parametrize("elements", [1, 500, 1 << 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_product_is_rounded_in_float32(dtype, elements, monkeypatch):
    monkeypatch.setattr(unpack, "BLOCK_ELEMENTS", {"cpu": elements})
    same(decode(SCHEME, STORED, dtype), dequantized("NVFP4", PACKED) * STORED["scale"])


def test_codes_and_scales_are_the_same_weight():
    assert isinstance(SCHEME, FactoredScheme) and SCHEME.codes == SCHEME.of.codes
    codes, scale = factor(SCHEME, STORED, torch.int8)
    expected = decode(SCHEME, STORED, torch.float32).double()
    torch.testing.assert_close(codes * scale, expected, rtol=2e-7, atol=0)


def test_what_it_says_of_itself():
    assert SCHEME.label == "NVFP4" and SCHEME.tensors == ("NVFP4", "scale")
    assert SCHEME.shape == (8, 192) and SCHEME.inputs is None


def test_another_order_of_rows_is_of_the_blocks_alone():
    """Two heads, whose halves take turns."""
    found = decode(permuted(SCHEME, Layout(turns=2), "m.weight"), STORED, torch.float32)
    expected = dequantized("NVFP4", PACKED) * STORED["scale"]
    same(found, expected[[0, 2, 1, 3, 4, 6, 5, 7]])
