"""Columns of a table: what they show, and what they are as data."""

import pytest

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Preformatted,
    Prose,
    Said,
    Table,
    counted,
    data,
    ends,
    interval,
    interval_text,
    measured,
    number,
    printable,
    size,
    without_interval,
    words,
)
from scoremode.report.rendering import document_markdown
from scoremode.report.terminal import document_text
from scoremode.results.record.section import Metric


def metric(
    value: float = 1.0, ci95: tuple[float, float] | None = None, note: str | None = None
) -> Metric:
    return Metric(value=value, ci95=ci95, n=9, note=note)


METRIC = metric(0.0123456789, (0.01, 0.02))


def test_a_metric_is_shown_rounded_and_kept_in_full():
    column = measured("KLD (nats)", "kld_nats", ".4g")
    assert column.show(METRIC) == "0.01235"
    assert [f"{column.key}{end}" for end in column.ends] == [
        *("kld_nats", "kld_nats_low", "kld_nats_high")
    ]
    assert column.parts(METRIC) == (0.0123456789, 0.01, 0.02)
    assert column.parts(metric()) == (1.0, None, None)
    assert measured("ratio", "ratio", ".2f", "×").show(METRIC) == "×0.01"
    assert interval(".2f").show(METRIC.ci95) == "[0.01, 0.02]"


@pytest.mark.parametrize(
    ("sizes", "head", "shown"),
    [
        ([0.001, None, 0.0026], "MiB", ["1.02", "2.66"]),
        ([0.001, 14.96], "GiB", ["0.001", "14.960"]),
        ([0.25], "GiB", ["0.250"]),
        ([None], "GiB", []),
    ],
)
def test_a_size_is_in_the_unit_that_shows_it(sizes, head, shown):
    column = size(sizes)
    assert (column.head, column.key) == (head, "size_gib")
    assert [column.show(value) for value in sizes if value is not None] == shown


def test_a_file_s_words_are_escaped():
    assert words("model", "model").show("a\x1b[2Jb\nc") == r"a\x1b[2Jb\nc"


def test_columns_without_a_value_or_a_heading_are_left_out():
    table = Table(
        (words("model", "model"), number("PPL", "ppl", ".1f"), data("n"), Column("KLD", "kld")),
        (("a", 1.0, 5, None), ("b", Said("base"), 6, None)),
    )
    assert [column.head for column in table.filled().columns] == ["model", "PPL"]
    assert table.filled().rows == (("a", 1.0), ("b", Said("base")))


HOSTILE = "a\x1b[2Jb\u202ec\nd\re"


@pytest.mark.parametrize(("form", "signs"), [(document_text, 6), (document_markdown, 7)])
def test_nothing_that_a_file_holds_acts_on_a_terminal(form, signs):
    """Whatever part it stands in, and whether or not whoever made the document escaped it."""
    table = Table((Column(HOSTILE, "k"), number("n", "n", "d")), ((HOSTILE, 1), (Said(HOSTILE), 2)))
    facts = Facts(((HOSTILE, HOSTILE), ("", HOSTILE)))
    text = form(Document((facts, table, Prose(HOSTILE), Preformatted(HOSTILE)), table))
    assert all(line.isprintable() for line in text.split("\n"))
    # A new line within a name or a cell becomes a sign, and Markdown repeats a name that goes on; words
    # and lines that stand as they are may have several lines.
    assert text.count("\\n") == signs


def test_columns_are_as_wide_as_their_widest_cell():
    table = Table((words("name", None), number("n", None, ",d")), (("a", 1), ("longer", 1000)))
    facts = Facts((("a", "1"), ("", "2"), ("bcd", "3")))
    assert document_text(Document((facts, table), table)).splitlines() == [
        "a    1",
        "     2",
        "bcd  3",
        "",
        "name        n",
        "-------------",
        "a           1",
        "longer  1,000",
    ]


def test_an_interval_and_one_that_is_not_there():
    some, none = metric(ci95=(0.98765, 1.2)), metric(note="3 blocks")
    assert ends(some, "+.2f") == "[+0.99, +1.20]"
    assert interval_text(some) == "95 % [0.9877, 1.2000]"
    assert (ends(none, ".2f"), ends(None, ".2f"), interval_text(none)) == (
        "-",
        "-",
        "(no interval)",
    )
    reasons = without_interval([none, some, none, metric(note="2 blocks")])
    assert reasons == [("no interval", "2 blocks"), ("no interval", "3 blocks")]


@pytest.mark.parametrize(("n", "words"), [(0, "0 files"), (1, "1 file"), (2000, "2,000 files")])
def test_one_is_not_many(n, words):
    assert counted(n, "file") == words


def test_what_a_file_holds_is_one_line_of_some_length():
    assert printable("a\nb\x1b[2J é") == r"a\nb\x1b[2J é"
    assert printable("x" * 100) == "x" * 100
    assert printable("x" * 101) == "x" * 100 + "…"
