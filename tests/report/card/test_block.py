"""A model card's Markdown, held against what a Markdown library makes of it."""

import html
import re

import pytest
from markdown_it import MarkdownIt
from support.card_groups import made_run, two_groups

from scoremode.cli.card import groups_of
from scoremode.report.card.block import BEGIN, END, card_block

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return two_groups(tmp_path_factory.mktemp("runs"))


def tables(block: str) -> list[list[list[str]]]:
    found = re.findall(r"<table>(.*?)</table>", GITHUB.render(block), re.DOTALL)
    return [
        [
            [html.unescape(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        ]
        for table in found
    ]


def test_a_table_a_plan_with_the_base_as_a_row(groups):
    block = card_block(groups)
    first, second = tables(block)
    assert [row[0] for row in first] == ["model", "base (base)", "Q8_0", "Q4_K_M"]
    assert [row[0] for row in second] == ["model", "base (base)", "Q4_K_M"]
    base, best = (dict(zip(first[0], row, strict=True)) for row in first[1:3])
    assert (base["bits/weight"], base["GiB"], base["KLD (nats)"]) == ("16.000", "14.960", "—")
    metrics = groups[0].records[0]["metrics"]
    kld = metrics["kld"]
    low, high = kld["ci95"]
    assert best["KLD (nats)"] == f"{kld['value']:.4g} [{low:.4g}, {high:.4g}]"
    assert best["PPL"].startswith(f"{metrics['ppl']['value']:.4f} [")
    assert base["PPL"].startswith(f"{metrics['ppl_base']['value']:.4f} [")
    assert "\\" not in block and block.startswith(BEGIN) and block.rstrip().endswith(END)


def test_protocol_text_base_and_hashes_are_in_a_line_and_short(groups):
    (line, other) = (p for p in card_block(groups).splitlines() if p.startswith("Protocol "))
    record = groups[0].records[0]
    for words in (
        *("windows of 64 tokens every 64", "made.txt", "against base", "in nats"),
        *(record["corpus"]["text"]["sha256"][:12], record["plan"]["sha256"][:12]),
        f"{record['plan']['scored']:,} tokens in {record['plan']['windows']:,} windows",
    ):
        assert words in line
    assert "bos=never" in other and "org/data en validation" in other
    assert not re.search(r"[0-9a-f]{13}", line)


def test_commands_stand_as_they_are_typed(groups):
    code = re.findall(
        r"<pre><code[^>]*>(.*?)</code></pre>", GITHUB.render(card_block(groups)), re.DOTALL
    )
    first, second = (html.unescape(c).splitlines() for c in code)
    assert [line.split()[:3] for line in first] == [
        ["scoremode", "kld", "Q8_0"],
        ["scoremode", "kld", "me/Q4_K_M"],
    ]
    assert "--dataset org/data --dataset-config en --split validation" in second[0]


def test_the_footer_names_the_version_and_no_badge(groups):
    block = card_block(groups)
    version = groups[0].records[0]["versions"]["scoremode"]
    assert f"<sub>Measured with scoremode {version}; records " in block
    assert "![" not in block and "http" not in block and "<img" not in block


def test_what_a_number_does_not_contain_is_told(tmp_path):
    run = made_run(
        tmp_path / "x",
        0.3,
        "models/W4A4",
        **{"engine.activations": {"declared": "int4 token", "ran": "not quantized"}},
    )
    block = card_block(groups_of([run]))
    assert "- W4A4: less than declared: activations are declared int4 token" in block


HOSTILE = "models/<script>alert(1)</script>[x](http://e.vil)`*a*`|b\x1b[31m```"


def test_a_model_s_name_does_nothing(tmp_path):
    block = card_block(groups_of([made_run(tmp_path / "x", 0.3, HOSTILE)]))
    page = GITHUB.render(block)
    body = page.replace("<sub>", "").replace("</sub>", "")
    assert "<script" not in body and "<a " not in body and "<em>" not in body
    assert "\x1b" not in block and len(tables(block)[0]) == 3
    assert {len(row) for row in tables(block)[0]} == {len(tables(block)[0][0])}
