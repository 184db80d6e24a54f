"""The harness's results as a record's section: which numbers are metrics, and what pairs say."""

import math

import pytest
from support.task_runs import QUESTIONS, measured_requests, rounded

from scoremode.harness.metrics import HarnessResults
from scoremode.results.folders.store import read_scores
from scoremode.results.folders.tables import ANSWERS, read_table


@pytest.fixture(scope="module")
def runs(demo, tmp_path_factory):
    place = tmp_path_factory.mktemp("tasks")
    model = rounded(demo / "model", place / "model")
    return [
        measured_requests(demo / "model", place / "alone"),
        measured_requests(model, place / "paired", demo / "model"),
    ]


def test_metrics_are_numbers_with_a_filter():
    task = {"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.1, "f1,strict": math.nan, "name": "t",
            "bpb,none": 1, "bpb_stderr,none": "N/A", "sample_len": 3, "ok,none": True}  # fmt: skip
    found = HarnessResults({"results": {"t": task}}).metrics("results", "t")
    assert found == ({"acc,none": 0.5, "bpb,none": 1.0}, {"acc,none": 0.1})


def test_every_question_has_its_row(runs):
    alone, paired = runs
    rows = read_table(alone.folder / ANSWERS, alone.record.tasks.answers)
    assert len(rows["task"]) == 2 * QUESTIONS + 2 and "base_value" not in rows
    assert rows["weight"].count(None) == 2 * QUESTIONS and rows["chosen"].count(None) == 2
    right = [v for t, v in zip(rows["task"], rows["value"], strict=True) if t == "ends"]
    said = alone.record.document["tasks"]["tasks"]["ends"]
    assert sum(right) / QUESTIONS == pytest.approx(said["metrics"]["acc,none"])
    assert (said["questions"], said["requests"], said["version"]) == (
        QUESTIONS,
        3 * QUESTIONS,
        "1.0",
    )
    assert "base_value" in read_table(paired.folder / ANSWERS, paired.record.tasks.answers)


def test_pairs_are_of_the_same_questions(runs):
    alone, paired = runs
    base = read_table(alone.folder / ANSWERS, alone.record.tasks.answers)
    rows = read_table(paired.folder / ANSWERS, paired.record.tasks.answers)
    assert rows["base_value"][: 2 * QUESTIONS] == base["value"][: 2 * QUESTIONS]
    for name, tasks in (("ends", ["ends"]), ("more", ["more"]), ("both", ["ends", "more"])):
        here = [i for i, task in enumerate(rows["task"]) if task in tasks]
        own, theirs = ([rows[key][i] for i in here] for key in ("value", "base_value"))
        part = paired.record.document["tasks"]["groups" if name == "both" else "tasks"][name]
        pair = part["pairs"]["acc,none"]
        assert pair["lost"] == sum(a < b for a, b in zip(own, theirs, strict=True))
        assert pair["gained"] == sum(a > b for a, b in zip(own, theirs, strict=True))
        chosen = zip(rows["chosen"], rows["base_chosen"], rows["task"], strict=True)
        assert pair["changed"] == sum(a != b for a, b, task in chosen if task in tasks)
    assert "word_perplexity,none" not in paired.record.document["tasks"]["tasks"]["pages"]["pairs"]


def test_the_divergence_is_of_the_answers_tokens(runs):
    _, paired = runs
    scores, found = read_scores(paired.folder), paired.record.document["tasks"]["tasks"]
    assert scores.against is not None
    total = sum(found[task]["kld"]["n"] for task in found)
    assert total == len(scores)
    mean = sum(found[task]["kld"]["value"] * found[task]["kld"]["n"] for task in found) / total
    assert mean == pytest.approx(scores.against.kld.mean(), rel=1e-9)
    assert found["pages"]["kld"]["note"].startswith("2 questions")
