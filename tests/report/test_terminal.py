"""Documents on a terminal: no line is wider than it, what matters most stays, and files get all."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Preformatted,
    Prose,
    Table,
    Verdict,
    interval,
    measured,
    number,
    words,
)
from scoremode.report.terminal import Terminal, document_text, table_text, terminal_of
from scoremode.results.record.section import Metric


def metric(value: float) -> Metric:
    return Metric(value=value, ci95=(value * 0.9, value * 1.1), n=9, note=None)


def table(*names: str) -> Table:
    columns = (
        words("model", "model"),
        Column(None, "is_base"),
        measured("PPL", "ppl", ".4f", importance=6),
        interval(".4f", importance=3),
        measured("KLD", "kld", ".4f", importance=9),
        interval(".4f", importance=5),
        number("empty", "empty", ".1f", 7),
        number("GiB", "size", ".2f", 4),
    )
    ppl, kld = metric(12.3456), metric(0.0123)
    row = (ppl, ppl.ci95, kld, kld.ci95, None, 1.25)
    return Table(columns, tuple((name, i == 0, *row) for i, name in enumerate(names)))


def headings(text: str) -> list[str]:
    return re.split(r"\s{2,}", text.split("\n")[0].strip())


def widest(text: str) -> int:
    return max(map(len, re.sub(r"\x1b\[[\d;]*m", "", text).split("\n")))


@pytest.mark.parametrize(
    ("width", "kept", "left"),
    [
        (200, ["model", "PPL", "95 %", "KLD", "95 %", "empty", "GiB"], None),
        # With a column that has no value nothing is lost.
        (70, ["model", "PPL", "95 %", "KLD", "95 %", "GiB"], None),
        (50, ["model", "PPL", "KLD", "95 %", "GiB"], "95 % of PPL"),
        (32, ["model", "PPL", "KLD", "GiB"], "95 % of PPL, 95 % of KLD"),
        # A number that has no room takes its interval with it.
        (20, ["model", "KLD", "GiB"], "PPL, 95 % of KLD"),
        (10, ["model", "KLD"], "PPL, 95 % of KLD, GiB"),
    ],
)
def test_the_columns_that_matter_most_stay_and_the_others_are_named(width, kept, left):
    text = table_text(table("base", "Q4"), Terminal(width))
    assert headings(text) == kept and (width < 20 or widest(text) <= width)
    below = " ".join(" ".join(text.split("\n")[4:]).split())
    words = f"not shown in {width} columns: {left} (a wider terminal or --format markdown has all)"
    assert below == (words if left else "")


def test_names_are_broken_at_their_joints_where_even_what_must_stay_has_no_room():
    name = "org/base-model-of-a-very-long-name-Instruct-Q4_K_M.gguf"
    lines = table_text(table(name, "Q4"), Terminal(30)).split("\n")
    assert [line.rstrip() for line in lines[:5]] == [
        "model                      KLD",
        "------------------------------",
        "org/base-model-of-a-    0.0123",
        "very-long-name-",
        "Instruct-Q4_K_M.gguf",
    ]
    assert lines[5].split() == ["Q4", "0.0123"]
    # No column is so narrow that nobody can read it.
    lines = table_text(table(name), Terminal(1)).split("\n")
    assert [line.rstrip() for line in lines[2:4]] == ["org/base-     0.0123", "model-of-a-"]


def test_words_in_a_cell_are_broken_and_numbers_are_not():
    columns = (words("model", "m"), number("s", "s", ".0f"), words("why not", "w", 9))
    text = table_text(
        Table(columns, (("a", 123456789012345.0, "no such folder: /some/where/else"),)),
        Terminal(24),
    )
    assert text.split("\n")[:4] == [
        "model  why not",
        "-----------------------",
        "a      no such folder:",
        "       /some/where/else",
    ]
    kept = Table((columns[0], number("s", "s", ".0f", 9)), (("a", 123456789012345.0),))
    assert table_text(kept, Terminal(10)).split("\n")[2] == "a      123456789012345"


FACTS = Facts(
    (
        ("KLD", "0.0123 nats   95 % [0.0119, 0.0127], of which nobody says that it is long"),
        ("record", "runs/20261126T182955_W4A16-g32_b42dc23e/record.json"),
        ("more", "scoremode show runs/20261126T182955_W4A16-g32_b42dc23e -v"),
        ("a name that is longer than its share", "words"),
    )
)


def test_facts_hang_behind_their_names_and_what_is_copied_stays_whole():
    text = document_text(Document((FACTS,), Table((), ())), Terminal(50))
    assert text.split("\n") == [
        "KLD             0.0123 nats",
        "                95 % [0.0119, 0.0127], of which",
        "                nobody says that it is long",
        "record          runs/20261126T182955_W4A16-g32_b42dc23e/record.json",
        "more            scoremode show runs/20261126T182955_W4A16-g32_b42dc23e -v",
        "a name that is longer than its share",
        "                words",
    ]


def test_wide_characters_take_two_columns():
    lines = table_text(table("模型", "Q4"), Terminal(200)).split("\n")
    assert lines[2].startswith("模型   12.3456") and lines[3].startswith("Q4     12.3456")
    facts = Facts((("模型", "x"), ("n", "文" * 30)))
    lines = document_text(Document((facts,), Table((), ()))).split("\n")
    assert lines[0] == "模型  x" and lines[1].startswith("n     文")


def test_a_file_gets_everything_in_one_line_each():
    parts = (FACTS, table("base", "x" * 90), Prose("y " * 200), Preformatted("z " * 200))
    text = document_text(Document(parts, parts[1], Verdict("v " * 200, True)))
    assert "x" * 90 in text and "\x1b" not in text and "not shown" not in text
    assert len(text.split("\n")) == 1 + 1 + len(FACTS.rows) + 1 + 4 + 1 + 1 + 1 + 1


@given(
    st.integers(24, 120),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=80),
)
def test_no_line_is_wider_than_the_terminal_and_nothing_acts_on_it(width, name):
    text = document_text(
        Document((Facts((("model", name),)), table(name, "b")), table(name)),
        Terminal(width, has_color=True),
    )
    plain = re.sub(r"\x1b\[[\d;]+m", "", text)
    assert all(line.isprintable() for line in plain.split("\n"))
    assert plain.isascii() is False or widest("\n".join(plain.split("\n\n")[1:])) <= width


VERDICT = Document((FACTS, table("base", "Q4"), Prose("so it is")), table("a"), Verdict("so it is"))


def test_the_verdict_comes_first_and_once():
    text = document_text(VERDICT)
    assert text.startswith("so it is\n\nKLD ") and text.count("so it is") == 1


@pytest.mark.parametrize(
    ("holds", "begin"), [(None, "\x1b[1m"), (True, "\x1b[1;32m"), (False, "\x1b[1;31m")]
)
def test_colors_say_what_the_words_say(holds, begin):
    facts = Facts(
        (
            ("gate", "--max-kld 1: 2: NOT MET"),
            ("gate", "--min-top1 0: 1: met"),
            ("NOT HELD OUT", "half of it"),
            ("part", "WRONG: one"),
            ("KLD", "0.1"),
        )
    )
    document = Document((facts, table("base", "Q4")), table("a"), Verdict("all of it", holds))
    text = document_text(document, Terminal(80, has_color=True))
    assert text.startswith(f"{begin}all of it\x1b[0m\n")
    for color, said in (
        ("31", "--max-kld 1: 2: NOT MET"),
        ("32", "--min-top1 0: 1: met"),
        ("33", "half of it"),
        ("31", "WRONG: one"),
    ):
        assert f"\x1b[{color}m{said}\x1b[0m" in text
    heading, ruler, base, quant = text.split("\n\n")[2].split("\n")
    assert heading.startswith("\x1b[1mmodel") and base.startswith("\x1b[2mbase")
    assert "\x1b" not in ruler + quant + text.split("\n")[6]
    # The words are the same without.
    assert re.sub(r"\x1b\[[\d;]+m", "", text) == document_text(document, Terminal(80))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "has_color"),
    [
        (Screen, {}, True),
        (Screen, {"NO_COLOR": "1"}, False),
        (Screen, {"NO_COLOR": ""}, True),
        (Screen, {"TERM": "dumb"}, False),
        (Screen, {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        (Screen, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
    ],
)
def test_colors_are_there_where_a_terminal_or_the_user_asks(
    stream, variables, has_color, monkeypatch
):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "77")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = terminal_of(stream())
    assert found == Terminal(77 if stream is Screen else None, has_color)
