"""Codes of EXL3 against what its own kernels make of them, to the bit, and against numpy."""

import hashlib

import pytest
import torch
from support.families.exl3 import decoded, inner, quantize
from support.families.exl3_golden import CODEBOOKS, linear

from scoremode.schemes.base import Scratch
from scoremode.schemes.exl3 import MULTIPLIERS, codebook_values, inner_weight

CPU = torch.device("cpu")


def by_input(trellis: torch.Tensor, codebook: str) -> torch.Tensor:
    """float32 [I, O]."""
    made = inner_weight(trellis, codebook_values(codebook, CPU), Scratch())
    return made.transpose(0, 1).reshape(trellis.shape[0] * 16, -1)


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_equals_the_golden_file(bits, codebook):
    stored, of_library = linear(bits, codebook)
    ours = by_input(stored["trellis"], codebook).half()
    # Which value is where, should the hashes differ.
    assert torch.equal(ours[::27, :64], of_library["inner"])
    digest = hashlib.sha256(ours.contiguous().numpy().tobytes()).digest()
    assert list(digest) == of_library["sha256"].tolist()


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", [1, 3, 7])
def test_tiles_of_a_larger_weight(bits, codebook):
    """Some rows and columns of tiles, from an odd half word on."""
    torch.manual_seed(bits)
    stored = quantize(torch.randn(384, 256), bits, codebook)
    whole = by_input(stored["trellis"], codebook)
    assert torch.equal(whole, torch.from_numpy(inner(stored)))
    memory = torch.zeros(stored["trellis"].numel() + 1, dtype=torch.int16)
    moved = memory[1:].view(stored["trellis"].shape).copy_(stored["trellis"])
    assert torch.equal(by_input(moved[8:, 8:16], codebook), whole[128:, 128:256])


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_every_value_of_a_codebook(codebook):
    stored = {codebook: torch.tensor(MULTIPLIERS[codebook])}
    codes = torch.arange(1 << 16).numpy().astype("uint64")
    theirs = torch.from_numpy(decoded(codes, stored)).float()
    ours = codebook_values(codebook, CPU)
    assert torch.equal(ours, theirs)
    assert 0.9 < ours.std() < 1.3 and ours.mean().abs() < 0.01
