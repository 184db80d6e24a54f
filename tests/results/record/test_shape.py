"""Shapes: what fits, and how what doesn't is told."""

import pytest

from scoremode.results.record.shape import (
    COUNT,
    FRACTION,
    MOST,
    NUMBER,
    SHA256,
    Choice,
    Each,
    Either,
    Maybe,
    Range,
    Where,
    misfit,
    shortened,
    value_at,
)

ENGINE = Where({"kind": str}, "kind", "vllm", {"path": str})


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (None, Maybe(int)),
        (3, Either(str, int)),
        ({"a": 1, "other": []}, {"a": int, "b?": str}),
        ({"x": 1.0, "y": 2}, Each(NUMBER, ("x",))),
        ([], [int]),
        ([1, 2], [int, int]),
        (MOST, int),
        (0.0, FRACTION),
        (2, Range(int, 1, 2)),
        ("ab" * 32, SHA256),
        ("upper", Choice("value", "upper")),
        ({"kind": "torch"}, ENGINE),
        ({"kind": "vllm", "path": "x"}, ENGINE),
        (object(), object),
    ],
)
def test_what_fits(value, shape):
    assert misfit(value, shape, "f") is None


@pytest.mark.parametrize(
    ("value", "shape", "said"),
    [
        (True, int, "its f is True, not a whole number"),
        (1, bool, "its f is 1, not true or false"),
        (MOST + 1, NUMBER, f"its f is {MOST + 1}, not a number"),
        ("x", Maybe(int), "its f is 'x', not a whole number"),
        (None, Either(str, int), "its f is None, not a text"),
        ({}, {"a": int}, "has no f.a"),
        ({"b": 1}, {"b?": str}, "its f.b is 1, not a text"),
        ([], {"a": int}, "its f is [], not an object"),
        ({"x": 1}, Each(NUMBER, ("y",)), "has no f.y"),
        ([1, "x"], [int], "its f.1 is 'x', not a whole number"),
        ([1], [int, int], "its f is [1], not a list of 2"),
        (-1, COUNT, "its f is -1, not a whole number of at least 0"),
        (3, Range(int, 1, 2), "its f is 3, not a whole number of at least 1 and at most 2"),
        (1.0, COUNT, "its f is 1.0, not a whole number of at least 0"),
        ("AB" * 32, SHA256, f"its f is '{'AB' * 29}A…, not 64 hexadecimal digits"),
        ("ab", SHA256, "its f is 'ab', not 64 hexadecimal digits"),
        ([], Choice("a", "b"), "its f is [], not one of a, b"),
        ({"kind": "vllm"}, ENGINE, "has no f.path"),
    ],
)
def test_what_does_not_fit_is_named(value, shape, said):
    assert misfit(value, shape, "f") == said


def test_the_value_itself_has_no_field():
    assert misfit([], {"a": int}) == "is [], not an object"


def test_a_value_is_found_under_its_keys():
    record = {"a": {"b": {"c": 1, "none": None}}}
    assert value_at(record, "a.b.c") == 1
    assert value_at(record, "a.b.none", "missing") is None
    assert value_at(record, "a.x.c") is value_at(record, "a.b.c.d") is None
    assert value_at(record, "a.b.x", "missing") == "missing"


def test_a_long_text_is_cut_at_60():
    assert shortened("x" * 60) == "x" * 60 and shortened("x" * 61) == "x" * 60 + "…"
