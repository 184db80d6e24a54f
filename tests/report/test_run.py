"""Which table a finished run has."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.comparisons import made, overlapping
from support.record_fields import fields
from support.run_folders import CONTEXT, ENGINE, REFERENCE, write_run
from support.task_runs import measured_requests, rounded

from scoremode.errors import UsageError
from scoremode.report.compare import compare_document
from scoremode.report.page.data import report_data
from scoremode.report.page.document import section_part
from scoremode.report.rendering import table_csv
from scoremode.report.run import (
    finished_document,
    kld_document,
    reference_document,
    run_document,
    shard_document,
    tasks_document,
    tasks_of_runs,
    worst_facts,
)
from scoremode.report.terminal import document_text, table_text
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.store import read_record
from scoremode.results.record.definition import read_document
from scoremode.results.statistics.divergence import worst_tokens
from scoremode.results.statistics.verdict import record_verdicts

SCORES = made(**overlapping(1000, CONTEXT, 64), noise=0.3)


@pytest.mark.parametrize("verbose", [False, True])
def test_each_kind_of_run_has_its_own(verbose, tmp_path):
    compared = write_run(tmp_path / "kld", SCORES)
    record = read_record(compared)
    shown = document_text(finished_document(read_document(record), compared, verbose=verbose))
    assert shown == document_text(kld_document(read_document(record), compared, verbose=verbose))
    alone = write_run(tmp_path / "ppl", replace(SCORES, against=None))
    record = read_record(alone)
    shown = document_text(finished_document(read_document(record), alone, verbose=verbose))
    assert shown == document_text(run_document(read_document(record), alone, verbose=verbose))
    states = {"rows": 2000, "width": 64, "dtype": "bfloat16", "files": []}
    place = {"source": "base", "path": "models/base", "weight": "lm_head.weight", "bias": None}
    head = {"vocabulary": 1024, "width": 64, "dtype": "bfloat16", "scale": 1.0, "softcap": None,
            "sha256": {"weight": 64 * "0"}, "file": None, "checkpoint": place}  # fmt: skip
    kept = record | {"kept": {"states": states, "head": head, "sha256": 64 * "0"}}
    shown = document_text(finished_document(read_document(kept), alone, verbose=verbose))
    assert (
        shown
        == document_text(reference_document(read_document(kept), alone, verbose=verbose))
        != document_text(run_document(read_document(kept), alone))
    )
    assert "2,000 of 64 bfloat16, 0.000 GB" in shown and "left in models/base" in shown


def test_worst_tokens_are_shown_once_where_asked(tmp_path):
    assert SCORES.against is not None
    folder = write_run(tmp_path / "kld", SCORES)
    record = read_document(read_record(folder) | {"worst": worst_tokens(SCORES, SCORES.against)})
    table = table_text(worst_facts(record.worst or ()))
    assert table not in document_text(finished_document(record, folder))
    for verbose in (False, True):
        text = document_text(finished_document(record, folder, verbose=verbose, worst=True))
        assert text.count(table) == 1 and text.endswith(table)


RECORD = {
    "status": "shard",
    "shard": {"number": 2, "of": 4, "passes": [3, 5], "of_passes": 9, "windows": [24, 1400],
              "targets": 12_345},
    "plan": {"windows": 4000, "scored": 98_765},
    "checkpoint": {"source": "models/x\x1b[31m", "kv_cache_declared": None},
    "corpus": {"name": "made.txt", "rows": None, "row_limit": None,
               "text": {"rule": "rows", "bytes": 5000}},
    "protocol": {"name": "disjoint", "context_length": 64, "stride": 64, "scored": "all"},
    "engine": ENGINE,
    "seconds": {"score": 3.0, "write": 0.5, "total": 4.0},
}  # fmt: skip


def shard_of(**changes: Any) -> Any:
    made = fields(RECORD | changes)
    made.document = RECORD | changes
    return made


@pytest.mark.parametrize("verbose", [False, True])
def test_it_counts_from_one_and_says_that_it_is_no_whole(verbose):
    text = document_text(shard_document(shard_of(), Path("runs/a"), verbose=verbose))
    rows = dict(line.split(None, 1) for line in text.splitlines() if line.strip())
    assert rows["shard"] == "2 of 4, done"
    assert "a part of the text: scoremode merge makes the run of 4 shards" in text
    assert rows["passes"] == "4 to 5 of 9" and rows["windows"] == "25 to 1,400 of 4,000"
    assert rows["targets"] == "12,345 of 98,765" and rows["record"] == "runs/a/record.json"
    assert "\x1b" not in text and "PPL" not in text and "KLD" not in text
    assert ("seconds" in rows) == verbose


def test_with_a_base_it_names_it_and_csv_has_plain_numbers():
    document = shard_document(shard_of(reference=REFERENCE), Path("runs/a"))
    assert "models/base" in document_text(document)
    (row,) = csv.DictReader(io.StringIO(table_csv(document.data)))
    assert row["shard"] == "2" and row["of"] == "4" and row["reference"] == "models/base"
    assert (row["first_pass"], row["passes"], row["of_passes"]) == ("3", "2", "9")
    assert (row["first_window"], row["windows"], row["targets"]) == ("24", "1376", "12345")


def test_one_shard_of_one_is_no_run_either():
    one = {"shard": RECORD["shard"] | {"number": 1, "of": 1}}
    text = document_text(shard_document(shard_of(**one), Path("a")))
    assert "it is all of the run: scoremode merge makes the run of 1 shard" in text


@pytest.fixture(scope="module")
def runs(demo, tmp_path_factory):
    place = tmp_path_factory.mktemp("tasks")
    model = rounded(demo / "model", place / "model")
    return [
        measured_requests(demo / "model", place / "alone"),
        measured_requests(model, place / "paired", demo / "model"),
    ]


def test_a_run_alone_has_its_metrics(runs):
    alone, _ = runs
    shown = document_text(finished_document(alone.record, alone.folder))
    said, _, head, _, first, *_ = shown.splitlines()
    assert head.split() == ["task", "questions", "metric", "value", "±"]
    accuracy = alone.record.document["tasks"]["groups"]["both"]["metrics"]["acc,none"]
    assert first.split() == ["both", "20", "acc", f"{accuracy:.4f}", "0.1000"]
    assert f": both acc {accuracy:.4f}, " in said and "the base" not in said
    assert "lm-evaluation-harness 0.4.13" in shown and "word_perplexity" in shown


def test_against_a_base_it_has_flips_and_mcnemar(runs):
    _, paired = runs
    document = tasks_document(paired.record, paired.record.tasks, paired.folder)
    said = document_text(document).splitlines()[0]
    change = paired.record.document["tasks"]["groups"]["both"]["pairs"]["acc,none"]["difference"]
    assert f" ({change['value']:+.4f}), " in said and "istinguishable from the base" in said
    # Of all tasks together first.
    (verdict,) = record_verdicts(paired.record.document)
    words = verdict.words("model", "question").replace("this text", "these questions")
    assert f": {words} of all tasks together; both acc " in said
    lines = table_csv(document.data).splitlines()
    assert lines[0].endswith(
        "base,change,change_ci95_low,change_ci95_high,lost,gained,mcnemar_p,kld"
    )
    pair = paired.record.document["tasks"]["tasks"]["ends"]["pairs"]["acc,none"]
    (line,) = (line for line in lines if line.startswith("ends,"))
    assert f",{pair['lost']},{pair['gained']},{pair['p']}," in line


def test_several_stand_side_by_side(runs):
    found = tasks_of_runs([(name, r.record.tasks) for name, r in zip("ab", runs, strict=True)])
    assert found is not None
    assert [(row[0], row[1], row[2]) for row in found.rows][:4] == [
        ("both", "acc", "a"), ("both", "acc", "b"), ("ends", "acc", "a"), ("ends", "acc", "b"),
    ]  # fmt: skip
    assert tasks_of_runs([]) is None


def test_compare_and_the_page_have_them(runs):
    folders = [run.folder for run in runs]
    shown = document_text(compare_document(ranking(folders)))
    (head,) = (line for line in shown.splitlines() if line.startswith("task "))
    assert head.split()[:4] == ["task", "metric", "model", "questions"] and "lost" in head
    (section,) = report_data(folders)["sections"]
    table = section_part(section).tasks
    assert table is not None
    assert [row.cells[1].text for row in table.rows].count("word_perplexity") == 2


def test_a_card_has_no_tasks(runs):
    from scoremode.cli.card import card

    with pytest.raises(UsageError, match="answers tasks, and a card has perplexity"):
        card([runs[0].folder])
