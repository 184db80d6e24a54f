"""ggml's K-quants against the gguf package, to the bit."""

import pytest
from gguf_cases import check_type

from scoremode.schemes.gguf.k_quants import K_QUANTS

# Where a block has its halves.
PLACES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_type(kind, PLACES[kind.name])
