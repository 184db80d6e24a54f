"""Weights in blocks, whatever their type."""

import pytest
import torch
from support.gguf.blocks import dequantized, random_blocks
from support.schemes import decode, same

from scoremode.schemes.base import FactoredScheme, RowScheme, Scratch
from scoremode.schemes.decoding import unpack
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.gguf import Blocks

SCHEME = Blocks("Q4_K", (6, 512))


@pytest.fixture
def stored():
    return {"Q4_K": random_blocks("Q4_K", 6, 2)}


def test_what_it_says_of_itself():
    assert isinstance(SCHEME, FactoredScheme) and isinstance(SCHEME, RowScheme)
    assert SCHEME.label == "Q4_K" and SCHEME.tensors == ("Q4_K",) and SCHEME.inputs is None
    assert SCHEME.codes == Codes("int", 15, 32)
    assert SCHEME.below(3) == Blocks("Q4_K", (18, 512))


@pytest.mark.parametrize("elements", [1, 700, 1024, 1 << 19])
def test_any_number_of_rows_at_a_time(stored, elements, monkeypatch):
    expected, scratch = dequantized("Q4_K", stored["Q4_K"]), Scratch()
    monkeypatch.setattr(unpack, "BLOCK_ELEMENTS", {"cpu": elements})
    for dtype in (torch.float32, torch.bfloat16):
        same(decode(SCHEME, stored, dtype, scratch), expected)
    codes = torch.empty(6, 512, dtype=torch.bfloat16)
    scale = SCHEME.factor(stored, codes, scratch)
    minimum = SCHEME.scales(stored).minimum
    assert minimum is not None
    values = codes.float().unflatten(1, (16, 32)) * scale[:, :, None] + minimum[:, :, None]
    same(values.flatten(1), expected)


def test_rows_that_lie_anywhere(stored):
    """Out of a wider tensor, from an odd byte on, and into a part of another."""
    expected = dequantized("Q4_K", stored["Q4_K"])
    wide = torch.zeros(6, 300, dtype=torch.uint8)
    wide[:, 7:295] = stored["Q4_K"]
    same(decode(SCHEME, {"Q4_K": wide[:, 7:295]}, torch.float32), expected)
    odd = torch.zeros(6 * 288 + 1, dtype=torch.uint8)[1:].view(6, 288).copy_(stored["Q4_K"])
    same(decode(SCHEME, {"Q4_K": odd}, torch.float32), expected)
    out = torch.full((6, 600), torch.nan)
    SCHEME.decode(stored, out[:, 9:521], Scratch())
    same(out[:, 9:521], expected)
    assert out[:, :9].isnan().all() and out[:, 521:].isnan().all()


def test_a_half_is_rounded_once():
    """From float32, where each weight is exact but for its minimum."""
    packed = random_blocks("Q5_K", 64, 4)
    expected = dequantized("Q5_K", packed).to(torch.float16)
    same(decode(Blocks("Q5_K", (64, 1024)), {"Q5_K": packed}, torch.float16), expected)
