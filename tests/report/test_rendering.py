"""A document as Markdown, held against what a Markdown library makes of it."""

import html
import io
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Preformatted,
    Prose,
    Said,
    Table,
    data,
    interval,
    measured,
    number,
    words,
)
from scoremode.report.rendering import (
    document_markdown,
    literal,
    preformatted,
    table_csv,
    table_markdown,
)
from scoremode.report.terminal import document_text, table_text
from scoremode.results.record.section import Metric

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


KLD = Metric(value=0.1 + 0.2, ci95=(1e-17, 2 / 3), n=9, note=None)
CSV_TABLE = Table(
    (
        words("model", "model"),
        measured("KLD", "kld_nats", ".2g"),
        interval(".2g"),
        number("bits", "bits", ".1f"),
        Column(None, "is_base"),
    ),
    (('a "b", c\n|', KLD, KLD.ci95, 4.0625, False), ("d", None, None, Said("base"), True)),
)


def test_every_number_comes_back_as_it_was():
    text = table_csv(CSV_TABLE)
    read = pa.csv.read_csv(io.BytesIO(text.encode())).to_pydict()
    assert list(read) == ["model", "kld_nats", "kld_nats_low", "kld_nats_high", "bits", "is_base"]
    assert read["model"] == ['a "b", c\\n|', "d"]
    assert read["kld_nats"] == [KLD.value, None] and read["kld_nats_high"] == [2 / 3, None]
    assert read["kld_nats_low"] == [1e-17, None] and read["bits"] == [4.0625, None]
    assert read["is_base"] == [0, 1]


def test_a_numpy_number_is_a_number():
    table = Table((number("x", "x", ".1f"),), ((np.float64(0.1),),))
    assert table_csv(table) == "x\n0.1\n"


def test_no_text_of_a_model_is_a_formula_in_a_spreadsheet():
    table = Table(
        (words("model", "model"), number("change", "change", ".1f")),
        tuple((name, -1.5) for name in ("=1+1", "+x", "-y", "@z", "a=b")),
    )
    lines = table_csv(table).splitlines()[1:]
    assert lines == ["'=1+1,-1.5", "'+x,-1.5", "'-y,-1.5", "'@z,-1.5", "a=b,-1.5"]


TEXT_TABLE = Table(
    (Column("model", "model"), data("n"), number("PPL", "ppl", ".2f")),
    (("a", 7, 12.345), ("longer", 8, None), ("c", 9, Said("base"))),
)


def test_a_table_has_its_headings_alone_and_a_sign_for_nothing():
    assert table_text(TEXT_TABLE).splitlines() == [
        "model     PPL",
        "-------------",
        f"a       {12.345:.2f}",
        "longer      -",
        "c        base",
    ]


def test_parts_follow_each_other():
    parts = (Facts((("a", "1"), ("bc", "2"))), TEXT_TABLE, Prose("words"), Preformatted("  x"))
    text = document_text(Document(parts, TEXT_TABLE))
    assert text == f"a   1\nbc  2\n\n{table_text(TEXT_TABLE)}\n\nwords\n\n  x"
