"""Differences: every leaf that a record says and that was not made, and nothing else."""

import pytest

from scoremode.results.record.section import differences

MADE = {"a": 1.0, "b": {"c": [1, 2.0], "note": None}, "d": "x"}


@pytest.mark.parametrize(
    ("stored", "fields"),
    [
        (MADE, []),
        ({"a": 1.0 + 1e-9}, []),
        ({"a": 1.0 + 1e-6}, ["s.a"]),
        # JSON knows one kind of number.
        ({"a": 1}, []),
        ({"a": True}, ["s.a"]),
        ({"b": {"c": [1, 2.5]}, "d": "y"}, ["s.b.c.1", "s.d"]),
        ({"b": {"c": [1]}}, ["s.b.c"]),
        ({"b": {"c": [1.0, 2.0]}}, ["s.b.c.0"]),
        ({"e": 1, "a": None}, ["s.e", "s.a"]),
        ({"b": {"note": "skipped"}}, []),
        ([], ["s"]),
    ],
)
def test_each_differing_leaf_is_named(stored, fields):
    assert [d.field for d in differences("s", stored, MADE, {"note"})] == fields


def test_words_have_both_values_and_what_gave_the_true_one():
    (one,) = differences("metrics.ppl", {"value": 4.9}, {"value": 5.1})
    assert one.words == "its metrics.ppl.value is 4.9, and its scores give 5.1"
    (one,) = differences("bytes", 7, 8, of="its files")
    assert one.words == "its bytes is 7, and its files give 8"
    (one,) = differences("m", {"x": 1}, {}, of="its files")
    assert one.words == "has m.x, which its files don't give"
