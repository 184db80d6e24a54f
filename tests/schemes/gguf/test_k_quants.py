"""ggml's K-quants against the gguf package, to the bit."""

import pytest
from support.gguf.block_checks import check_type

from scoremode.schemes.gguf_types import K_QUANTS


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_type(kind)
