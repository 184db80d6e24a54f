"""The list of ggml's block types."""

from gguf import GGML_QUANT_SIZES

from scoremode.schemes.gguf.block_types import BLOCK_TYPES


def test_each_is_as_large_as_ggml_has_it():
    known = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}
    for name, kind in BLOCK_TYPES.items():
        assert name == kind.name and known[name] == (kind.values, kind.bytes)
        assert kind.values % kind.group == 0
