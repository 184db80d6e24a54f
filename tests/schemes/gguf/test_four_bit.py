"""ggml's types of sixteen values against the gguf package, to the bit."""

import pytest
import torch
from support.gguf.block_checks import check_type
from support.gguf.blocks import dequantized, random_blocks
from support.schemes import decode, same

from scoremode.schemes.gguf import Blocks
from scoremode.schemes.gguf_types import FOUR_BIT


@pytest.mark.parametrize("kind", FOUR_BIT, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_type(kind)


@pytest.mark.parametrize(("kind", "scales"), [("MXFP4", 1), ("NVFP4", 4)])
def test_all_scales_of_a_byte(kind, scales):
    """Those of MXFP4 that are subnormal and those whose values are infinite, NVFP4's two NaNs."""
    packed = random_blocks(kind, 256, 1)
    packed[:, :scales] = torch.arange(256, dtype=torch.uint8)[:, None]
    expected = dequantized(kind, packed)
    assert expected.isinf().any() == (kind == "MXFP4")
    same(decode(Blocks(kind, (256, expected.shape[1])), {kind: packed}, torch.float32), expected)
