"""Sections: what fits a type, and how what doesn't is told."""

from typing import Literal

import pytest

from scoremode.results.record.section import (
    Count,
    Fraction,
    Positive,
    Section,
    Sha256,
    decode,
    differences,
    misfit,
    value_at,
)


class Torch(Section, kw_only=True, tag_field="engine", tag="torch"):
    dtype: str


class Vllm(Torch, kw_only=True, tag_field="engine", tag="vllm"):
    path: str


class Whole(Section, kw_only=True, rename={"from_": "from"}):
    a: int
    from_: str | None = None
    inner: dict[str, list[tuple[float, float]]] | None = None
    engine: Torch | Vllm | None = None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, int | None),
        ({"a": 1, "other": []}, Whole),
        ({"a": 1, "from": "x", "inner": {"x": [[1, 2.0]]}}, Whole),
        ({"x": 1.0, "y": 2}, dict[str, float]),
        ([], list[int]),
        ([1, 2], tuple[int, int]),
        (2**63 - 1, Count),
        (0.0, Fraction),
        ("ab" * 32, Sha256),
        ("upper", Literal["value", "upper"]),
        ({"a": 1, "engine": {"engine": "torch", "dtype": "x"}}, Whole),
        ({"a": 1, "engine": {"engine": "vllm", "dtype": "x", "path": "y"}}, Whole),
    ],
)
def test_what_fits(value, kind):
    assert misfit(value, kind, "f") is None
    decode(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (True, int, "its f is True, not a whole number"),
        (1, bool, "its f is 1, not true or false"),
        (2**63, Count, f"its f is {2**63}, not a whole number of at most {2**63 - 1}"),
        ("x", int | None, "its f is 'x', not a whole number"),
        ({}, Whole, "has no f.a"),
        ({"a": 1, "from": 1}, Whole, "its f.from is 1, not a text"),
        ([], Whole, "its f is [], not an object"),
        ({"a": 1, "inner": {"x": [[1, 2], [1]]}}, Whole, "its f.inner.x.1 is [1], not a list of 2"),
        ({"a": 1, "inner": {"x": [[1, "2"]]}}, Whole, "its f.inner.x.0.1 is '2', not a number"),
        ([1, "x"], list[int], "its f.1 is 'x', not a whole number"),
        (-1, Count, "its f is -1, not a whole number of at least 0"),
        (0, Positive, "its f is 0, not a whole number of at least 1"),
        (-0.5, Fraction, "its f is -0.5, not a number of at least 0"),
        (1.5, Count, "its f is 1.5, not a whole number"),
        ("AB" * 32, Sha256, f"its f is '{'AB' * 29}A…, not 64 hexadecimal digits"),
        ("ab" * 32 + "\n", Sha256, f"its f is '{'ab' * 29}a…, not 64 hexadecimal digits"),
        ("ab", Sha256, "its f is 'ab', not 64 hexadecimal digits"),
        ([], Literal["a", "b"], "its f is [], not one of a, b"),
        ({"a": 1, "engine": {"engine": "vllm", "dtype": "x"}}, Whole, "has no f.engine.path"),
        ({"a": 1, "engine": {"dtype": "x"}}, Whole,
         "its f.engine.engine is None, not one of torch, vllm"),
        ({"a": 1, "engine": 3}, Whole, "its f.engine is 3, not an object"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(value, kind, said):
    assert misfit(value, kind, "f") == said
    with pytest.raises(ValueError):
        decode(value, kind)


def test_the_value_itself_has_no_field():
    assert misfit([], Whole) == "is [], not an object"


def test_a_value_is_found_under_its_keys():
    record = {"a": {"b": {"c": 1, "none": None}}}
    assert value_at(record, "a.b.c") == 1
    assert value_at(record, "a.b.none", "missing") is None
    assert value_at(record, "a.x.c") is value_at(record, "a.b.c.d") is None
    assert value_at(record, "a.b.x", "missing") == "missing"


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
