"""The CUDA decoder of types without codebooks against the gguf package, to the bit."""

import pytest
from support.gguf.kernels import check_kernel, require_triton

from scoremode.schemes.gguf_types import FOUR_BIT, K_QUANTS, LEGACY, TERNARY

# What overflows on a GPU without a word, numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
# Bytes of a block where a half is; none in blocks with other scales.
HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": (), "NVFP4": (), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*LEGACY, *K_QUANTS, *FOUR_BIT, *TERNARY], ids=lambda k: k.name)
def test_equals_the_gguf_package(kind, monkeypatch):
    require_triton(monkeypatch)
    check_kernel(kind.name, HALVES.get(kind.name, (0,)))
