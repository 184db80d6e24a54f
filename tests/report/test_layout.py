"""Columns, intervals, and text that a file holds."""

import pytest

from scoremode.report.layout import (
    columns_table,
    counted,
    ends,
    interval,
    pairs,
    printable,
    without_interval,
)


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns_table(("name", "n"), [("a", "1"), ("longer", "1,000")]).splitlines() == [
        "name        n",
        "-------------",
        "a           1",
        "longer  1,000",
    ]
    assert pairs([("a", "1"), ("", "2"), ("bcd", "3")]) == "a    1\n     2\nbcd  3"


def test_an_interval_and_one_that_is_not_there():
    metric = {"ci95": [0.98765, 1.2], "note": None}
    assert ends(metric, "+.2f") == "[+0.99, +1.20]"
    assert interval(metric) == "95 % [0.9877, 1.2000]"
    none = {"ci95": None, "note": "3 blocks"}
    assert (ends(none, ".2f"), ends(None, ".2f"), interval(none)) == ("-", "-", "(no interval)")
    reasons = without_interval([none, metric, none, none | {"note": "2 blocks"}])
    assert reasons == [("no interval", "2 blocks"), ("no interval", "3 blocks")]


@pytest.mark.parametrize(("n", "words"), [(0, "0 files"), (1, "1 file"), (2000, "2,000 files")])
def test_one_is_not_many(n, words):
    assert counted(n, "file") == words


def test_what_a_file_holds_is_one_line_of_some_length():
    assert printable("a\nb\x1b[2J é") == r"a\nb\x1b[2J é"
    assert printable("x" * 100) == "x" * 100
    assert printable("x" * 101) == "x" * 100 + "…"
