"""A document as Markdown, held against what a Markdown library makes of it."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from scoremode.report.forms.document import (
    Column,
    Document,
    Facts,
    Preformatted,
    Prose,
    Said,
    Table,
    data,
    number,
    words,
)
from scoremode.report.forms.markdown import (
    document_markdown,
    literal,
    preformatted,
    table_markdown,
)

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    *(
        "a|b",
        "`code`",
        "*bold*",
        "__init__.py",
        "_x_",
        "<script>alert(1)</script>",
        "&lt;",
        "&#38;",
    ),
    *(
        "[a](http://b.c)",
        "![a](b)",
        "[a][b]",
        "[a]: b",
        "~~gone~~",
        "a\\|b",
        "c:\\",
        "\\*",
        "$$x$$",
    ),
    *("# no heading", "- no list", "1. no list", "<!-- -->", "Q4_K_M", "a_b_c_", "***", "a<b>c"),
]


def cells(markdown: str) -> list[list[str]]:
    """What a reader sees in each cell of the one table."""
    rows = re.findall(r"<tr>(.*?)</tr>", GITHUB.render(markdown), re.DOTALL)
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    assert not any("<" in cell for row in found for cell in row), found
    return [[html.unescape(cell) for cell in row] for row in found]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_says_what_the_text_says(text):
    table = Table((words("model", "model"), number("n", "n", "d")), ((text, 1), ("b", 2)))
    assert cells(table_markdown(table)) == [["model", "n"], [text, "1"], ["b", "2"]]


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12))
def test_any_text_is_shown_as_it_is(text):
    shown = cells(table_markdown(Table((Column("m", "m"), Column("n", "n")), ((text, "1"),))))
    assert shown[1] == [text.strip(), "1"]


@given(st.text(st.sampled_from("`*_|[](){}<>!~$&#\\:a "), min_size=1, max_size=12))
def test_any_signs_are_shown_as_they_are(text):
    shown = cells(table_markdown(Table((Column("m", "m"), Column("n", "n")), ((text, "1"),))))
    assert shown[1] == [text.strip(), "1"]


@pytest.mark.parametrize(
    "text", ["[38.9901, 58.3210]", "×1.01724", "+0.02%", "Q4_K_M", "W4A16-g32", "a (b)", "±0.5"]
)
def test_numbers_intervals_and_usual_names_stand_as_they_are(text):
    assert literal(text) == text


def test_a_table_has_no_padding_and_aligns_numbers_right():
    table = Table(
        (Column("model", "model"), data("n"), Column("PPL", "ppl")),
        (("a", 1, "5"), ("longer", 2, None), ("c", 3, Said("base"))),
    )
    assert table_markdown(table).splitlines() == [
        "| model | PPL |",
        "| --- | ---: |",
        "| a | 5 |",
        "| longer | — |",
        "| c | base |",
    ]


def test_the_data_come_first_where_no_part_shows_them():
    facts = Facts((("KLD", "1 | 2"), ("", "more"), ("over", "x")), frozenset({"KLD"}))
    table = Table((Column("model", "model"), Column("KLD", "kld")), (("a", "1"),))
    text = document_markdown(Document((facts, Prose("*w*")), table))
    assert text == "| model | KLD |\n| --- | ---: |\n| a | 1 |\n\n- over: x\n\n\\*w\\*"
    shown = document_markdown(Document((facts, table), table))
    assert shown.startswith("- KLD: 1 \\| 2\n- KLD: more\n- over: x\n\n| model")
    hidden = Table((data("kld"),), ((1,),))
    assert document_markdown(Document((facts,), hidden)).startswith("- KLD: 1")


def test_lines_as_they_are_close_no_fence():
    text = "```\n````\nx"
    assert GITHUB.render(preformatted(text)) == f"<pre><code>{text}\n</code></pre>\n"
    assert document_markdown(Document((Preformatted("a"),), Table((), ()))) == "```\na\n```"
