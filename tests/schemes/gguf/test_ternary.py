"""ggml's ternary types against the gguf package, to the bit."""

import pytest
from support.gguf.block_checks import check_type

from scoremode.schemes.gguf_types import TERNARY


@pytest.mark.parametrize("kind", TERNARY, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_type(kind)
