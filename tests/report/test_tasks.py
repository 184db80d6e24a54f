"""Tables of tasks: of one run, of several, in `compare` and on the page."""

import pytest
from support.task_runs import measured_requests, rounded

from scoremode.errors import UsageError
from scoremode.report.compare import compare_document
from scoremode.report.page.data import report_data
from scoremode.report.page.document import section_part
from scoremode.report.rendering import document_text, table_csv
from scoremode.report.run import finished_document
from scoremode.report.tasks import tasks_document, tasks_of_runs
from scoremode.results.comparison.ranking import ranking


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
    head, _, first, *_ = shown.splitlines()
    assert head.split() == ["task", "questions", "metric", "value", "±"]
    accuracy = alone.record["tasks"]["groups"]["both"]["metrics"]["acc,none"]
    assert first.split() == ["both", "20", "acc", f"{accuracy:.4f}", "0.1000"]
    assert "lm-evaluation-harness 0.4.13" in shown and "word_perplexity" in shown


def test_against_a_base_it_has_flips_and_mcnemar(runs):
    _, paired = runs
    document = tasks_document(paired.record, paired.folder)
    lines = table_csv(document.data).splitlines()
    assert lines[0].endswith(
        "base,change,change_ci95_low,change_ci95_high,lost,gained,mcnemar_p,kld"
    )
    pair = paired.record["tasks"]["tasks"]["ends"]["pairs"]["acc,none"]
    (line,) = (line for line in lines if line.startswith("ends,"))
    assert f",{pair['lost']},{pair['gained']},{pair['p']}," in line


def test_several_stand_side_by_side(runs):
    found = tasks_of_runs([(name, r.record["tasks"]) for name, r in zip("ab", runs, strict=True)])
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
    html = section_part(section, alone=True).html
    assert "<h3>Tasks</h3>" in html and html.count("word_perplexity") == 2


def test_a_card_has_no_tasks(runs):
    from scoremode.cli.card import card

    with pytest.raises(UsageError, match="answers tasks, and a card has perplexity"):
        card([runs[0].folder])
