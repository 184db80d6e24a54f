"""ggml's I-quants against the gguf package, to the bit."""

import pytest
import torch
from support.gguf.block_checks import check_type
from support.gguf.blocks import HALVES, dequantized, random_blocks
from support.schemes import decode, same

from scoremode.schemes.gguf import Blocks
from scoremode.schemes.gguf_i_quants import I_QUANTS


@pytest.mark.parametrize("kind", I_QUANTS, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_type(kind)


def test_a_half_in_four_parts():
    """IQ1_M's, in the highest bits of four words."""
    packed = random_blocks("IQ1_M", len(HALVES), 1)
    words = packed[:, 48:56].clone().view(torch.int16).int() & 0x0FFF
    given = torch.tensor(HALVES)[:, None] >> torch.tensor([0, 4, 8, 12])
    packed[:, 48:56] = (words | given << 12).short().view(torch.uint8)
    expected = dequantized("IQ1_M", packed)
    assert expected.isinf().all(1).sum() == 2 and expected.isnan().all(1).sum() == 2
    same(decode(Blocks("IQ1_M", (len(HALVES), 256)), {"IQ1_M": packed}, torch.float32), expected)
