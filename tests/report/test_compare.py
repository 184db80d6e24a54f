"""A comparison as a table, as Markdown, as CSV: every number, and no character that does something."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.report.compare import compare_document
from scoremode.report.document import Document
from scoremode.report.rendering import document_markdown, table_csv
from scoremode.report.terminal import document_text
from scoremode.results.comparison.ranking import ranking
from scoremode.results.gates import Gate
from scoremode.results.metrics import METRICS

PLACES = overlapping(9000, CONTEXT, 64)
HOSTILE = "models/a|b\x1b[31m\u202e`*"


@pytest.fixture(scope="module")
def value(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")
    sources = {"one": (0.1, None), "two": (0.5, HOSTILE)}
    return ranking(
        [
            write_run(folder / name, made(**PLACES, noise=noise), model=model)
            for name, (noise, model) in sources.items()
        ],
    )


def test_csv_has_a_line_a_run(value):
    base, one, two = csv.DictReader(io.StringIO(table_csv(compare_document(value).data)))
    assert (one["rank"], one["model"], two["rank"], two["next"]) == ("1", "one", "2", "")
    ranked, test = value["runs"][0], value["tests"][0]
    assert float(one["ppl"]) == ranked["ppl"]["value"]
    assert [float(one["kld_nats_low"]), float(one["kld_nats_high"])] == ranked["kld"]["ci95"]
    assert float(one["next_kld_difference_nats"]) == test["kld_difference"]["value"]
    assert one["verdict_kld"] == "better" and two["verdict_kld"] == ""
    assert None not in one and None not in one.values()
    assert (base["rank"], base["model"], base["is_base"], base["kld_nats"]) == ("", "base", "1", "")
    assert float(base["ppl"]) == value["base"]["ppl"]["value"]


def test_every_value_of_a_run_has_its_column_in_the_csv(value):
    """The table may leave one out; `source`, what a ratio is to, and verdicts with all
    their numbers are JSON's alone."""
    _, one, _ = csv.DictReader(io.StringIO(table_csv(compare_document(value).data)))
    units = {"half_life_tokens": "half_life", "size_gib": "gib"}
    units |= {metric.data_key: metric.key for metric in METRICS}
    named = {units.get(name, name) for name in one}
    assert value["runs"][0].keys() - named == {"source", "ratio_to", "ranks", "verdicts"}
    assert (one["rank_first"], one["rank_last"]) == ("1", "1")
    assert one["verdict_base"] == "within 0.01 nats"


def test_markdown_is_two_tables(value):
    tables = [
        part
        for part in document_markdown(compare_document(value)).split("\n\n")
        if part.startswith("|")
    ]
    assert len(tables) == 2
    for table in tables:
        columns = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(columns) == 1


def _csv(document: Document) -> str:
    return table_csv(document.data)


@pytest.mark.parametrize("render", [document_text, document_markdown, _csv])
def test_no_control_character_gets_through(render, value):
    text = render(compare_document(value))
    assert all(c.isprintable() or c == "\n" for c in text) and "\\x1b" in text


def test_both_metrics_are_tested_and_a_ratio_is_of_perplexities(value):
    test = value["tests"][0]
    ppl, kld = (
        line
        for line in document_text(compare_document(value)).splitlines()
        if line.startswith("one - a|b")
    )
    low, high = test["ppl_ratio"]["ci95"]
    assert f" ×{test['ppl_ratio']['value']:.5f}  [{low:.5f}, {high:.5f}]" in ppl
    assert "  PPL  " in ppl and f" {test['ppl_difference']['value']:+.4f} " in ppl
    assert "  KLD  " in kld and f" {test['kld_difference']['value']:+.3g} " in kld
    assert "×" not in kld and " better by " in kld


def test_a_run_alone_has_no_tests(tmp_path):
    alone: Path = write_run(tmp_path / "x", made(**PLACES, noise=0.3))
    text = document_text(compare_document(ranking([alone])))
    assert "against the next" not in text and "\nx " in text


def test_gates_are_below_the_ranking_with_value_interval_and_result(value):
    few = "3 blocks of 1,024 tokens: an interval needs at least 8"
    interval = (0.0123, 0.0456)
    judged = [
        ("one", Gate("max_kld", "", 0.05, 0.02, "upper", 0.0456, True, None, interval)),
        ("two|", Gate("min_top1", "", 0.9, 0.8, "value", 0.8, False, None, None, "90%")),
        ("two|", Gate("max_kld", "", 0.05, 0.02, "upper", None, False, few)),
    ]
    document = compare_document(value, judged)
    said = document_markdown(document)
    for row in (
        "| one | --max-kld 0.05 | upper | 0.02 | [0.0123, 0.0456] | met |",
        r"| two\| | --min-top1 90% | value | 0.8 | — | MISSED |",
        f"| two\\| | --max-kld 0.05 | upper | 0.02 | — | MISSED: {few} |",
    ):
        assert row in said
    assert document.verdict and not document.verdict.holds
    assert document.verdict.text.endswith("; MISSED 2 of 3 gates")
    met = compare_document(value, judged[:1]).verdict
    assert met and met.holds and met.text.endswith("; all gates met")
    bare = Gate("max_kld", "", 0.05, 0.02, "value", 0.02, True)
    few = compare_document(value, [("one", bare)]).verdict
    assert few and few.holds and few.text.endswith("; all gates met, without an interval")
    assert table_csv(document.data) == table_csv(compare_document(value).data)


def test_where_no_interval_is_made_nothing_is_said_of_its_blocks(value):
    assert "intervals from" in document_text(compare_document(value))
    few = {**value, "tests": [], "runs": [_without(run) for run in value["runs"]]}
    assert "intervals from" not in document_text(compare_document(few))


def _without(run):
    return {**run, "ppl": {**run["ppl"], "ci95": None, "note": "5 blocks of 1,024 tokens"}}
