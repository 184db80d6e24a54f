"""ggml's first types against the gguf package, to the bit."""

import pytest
from support.gguf.block_checks import check_type

from scoremode.schemes.gguf_types import LEGACY


@pytest.mark.parametrize("kind", LEGACY, ids=lambda kind: kind.name)
def test_equals_the_gguf_package(kind):
    check_type(kind)
