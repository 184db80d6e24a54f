"""The list of ggml's block types."""

from gguf import GGML_QUANT_SIZES, quants

from scoremode.schemes.gguf import BLOCK_TYPES


def test_each_is_as_large_as_ggml_has_it():
    known = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}
    for name, kind in BLOCK_TYPES.items():
        assert name == kind.name and known[name] == (kind.values, kind.bytes)
        assert kind.values % kind.group == 0


def test_all_of_the_gguf_package_are_there():
    """All that it decodes, but for floats."""
    decoded = {kind.name for kind in quants._type_traits}
    assert set(BLOCK_TYPES) == decoded - {"F32", "F16", "BF16"} and len(BLOCK_TYPES) == 23
