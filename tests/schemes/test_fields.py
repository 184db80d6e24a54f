import pytest

from scoremode.errors import CheckpointError
from scoremode.schemes.compressed_tensors_config import parse_quantization
from scoremode.schemes.fields import Fields, shown


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("whole", [0, -1, 10**30], [True, 1.0, "1", [], {}, float("nan")]),
        ("flag", [True, False], [0, 1, "true", []]),
        ("text", ["", "a"], [1, ["a"], True]),
        ("names", [[], ["a"]], ["a", ["a", 1], {"a": 1}, 3, [None]]),
        ("object", [{}], [[], "a", 0, False]),
    ],
)
def test_each_field_has_one_type(kind, good, bad):
    for value in good:
        found = getattr(Fields({"f": value}, "here"), kind)("f")
        assert found == (tuple(value) if kind == "names" else value) or isinstance(found, Fields)
    for value in bad:
        with pytest.raises(CheckpointError, match="here") as error:
            getattr(Fields({"f": value}, "here"), kind)("f")
        assert "f" in str(error.value) and shown(value) in str(error.value)


def test_null_counts_as_missing_only_without_a_default():
    assert Fields({"f": None}, "here").whole("f") is None
    assert Fields({}, "here").whole("f", 8) == 8
    with pytest.raises(CheckpointError, match="f None is not an integer"):
        Fields({"f": None}, "here").whole("f", 8)


def test_long_values_are_cut():
    assert len(shown("x" * 10_000)) < 100
    assert "thousands of digits" in shown(10**5000)


@pytest.mark.parametrize(
    "weights",
    [
        {"num_bits": "4"}, {"num_bits": 4.0}, {"num_bits": True}, {"symmetric": "false"},
        {"symmetric": None}, {"group_size": 2**40}, {"group_size": -2}, {"dynamic": 1},
        {"group_size": 32, "strategy": "channel"}, {"block_structure": [4, 4]},
        {"strategy": "block", "block_structure": "128x128x1"}, {"actorder": "what"},
        {"strategy": "block", "block_structure": [True, 4]}, {"format": 3}, {"scale_dtype": 8},
    ],
)  # fmt: skip
def test_what_passes_for_a_field_by_python_alone_is_refused(weights):
    group = {"targets": ["Linear"], "weights": weights}
    if "format" in weights:
        group = {"targets": ["Linear"], "format": 3}
    with pytest.raises(CheckpointError, match="can't be understood: group g"):
        parse_quantization({"config_groups": {"g": group}})
