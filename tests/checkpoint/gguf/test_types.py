"""The table of types against the gguf package's."""

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from scoremode.checkpoint.gguf.header import FLOATS, TYPES, TYPES_BY_ID, UNREAD


def test_ids_and_sizes_are_the_packages():
    theirs = {k.name: (k.value, *GGML_QUANT_SIZES[k]) for k in GGMLQuantizationType}
    # Of activations; the package gives Q8_1 the size that it had long ago.
    assert {theirs.pop("Q8_1")[0]: "Q8_1", theirs.pop("Q8_K")[0]: "Q8_K"}.items() <= UNREAD.items()
    assert {name: tuple(kind[1:]) for name, kind in TYPES.items()} == theirs


def test_no_id_has_two_names():
    assert len(TYPES_BY_ID) == len(TYPES)
    assert not UNREAD.keys() & TYPES_BY_ID.keys()


def test_floats_have_no_blocks():
    assert not any(TYPES[name].is_packed for name in FLOATS)
    assert sum(kind.is_packed for kind in TYPES.values()) == 24
