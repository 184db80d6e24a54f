"""The CUDA decoder of types with codebooks against the gguf package, to the bit."""

import pytest
import torch
from support.gguf.blocks import HALVES, dequantized, random_blocks
from support.gguf.kernels import check_kernel, require_triton, scheme_of
from support.kernel_twins import by_kernel, launches
from support.schemes import same

from scoremode.schemes.gguf_i_quants import I_QUANTS

# What overflows on a GPU without a word, numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    require_triton(monkeypatch)


@pytest.mark.parametrize("kind", I_QUANTS, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_kernel(kind.name, () if kind.name == "IQ1_M" else (0,))


def test_a_half_in_four_parts():
    """IQ1_M's, in the highest bits of four words."""
    packed = random_blocks("IQ1_M", len(HALVES), 1)
    words = packed[:, 48:56].clone().view(torch.int16).int() & 0x0FFF
    given = torch.tensor(HALVES)[:, None] >> torch.tensor([0, 4, 8, 12])
    packed[:, 48:56] = (words | given << 12).short().view(torch.uint8)
    with launches():
        ours = by_kernel(scheme_of("IQ1_M", packed), {"IQ1_M": packed}, "decode", torch.float32)
    same(ours, dequantized("IQ1_M", packed))
