"""The audit of a run of requests: it holds as it was made, and nothing that was changed does."""

import copy

import pyarrow as pa
import pytest
from support.records import typed
from support.task_runs import measured_requests, rounded

from scoremode.results.audit.findings import Findings
from scoremode.results.audit.numbers import audit_answers
from scoremode.results.folders.tables import ANSWERS, REQUESTS, read_table, write_table
from scoremode.runs.check.inputs import Sources
from scoremode.runs.check.text import audited_plan


@pytest.fixture(scope="module")
def run(demo, tmp_path_factory):
    place = tmp_path_factory.mktemp("tasks")
    model = rounded(demo / "model", place / "model")
    return measured_requests(model, place / "runs", demo / "model")


def audited(folder, record):
    findings = Findings()
    return audited_plan(typed(record), Sources(), findings, folder), findings


def wrong(findings) -> list[str]:
    return [f"{f.part} {f.name}" for f in findings.found if f.status == "wrong"]


def test_its_texts_make_its_plan_again(run):
    made, findings = audited(run.folder, run.record.document)
    assert made is not None and made[0].sha256 == run.record.plan.sha256
    assert findings.count("held") == len(findings.found) > 10
    audit_answers(run.folder, run.record, findings)
    assert wrong(findings) == [] and findings.count("held") > 8


def test_without_texts_or_tokenizer_it_says_what_it_could_not_check(run):
    gone = copy.deepcopy(run.record.document)
    gone["tokenizer"]["source"] = "/gone"
    for folder, record, name in (
        (None, run.record.document, "text sha256"),
        (run.folder, gone, "plan token ids"),
    ):
        made, findings = audited(folder, record)
        unchecked = {f"{f.part} {f.name}" for f in findings.found if f.status == "unchecked"}
        assert made is None and name in unchecked and wrong(findings) == []


@pytest.mark.parametrize(
    ("column", "said"),
    [("continuation", "text sha256"), ("windows", "plan windows of the requests")],
)
def test_a_request_that_was_changed_is_found(column, said, run, tmp_path):
    rows = read_table(run.folder / REQUESTS, run.record.requests)
    rows[column][0] = {"continuation": " Another end.", "windows": [0, 1]}[column]
    record = copy.deepcopy(run.record.document)
    record["requests"] |= write_table(tmp_path / REQUESTS, pa.table(rows))
    _, findings = audited(tmp_path, record)
    assert said in wrong(findings)


def test_requests_that_can_not_be_read_are_one_finding(run, tmp_path):
    (tmp_path / REQUESTS).write_bytes((run.folder / REQUESTS).read_bytes()[:-10])
    made, findings = audited(tmp_path, run.record.document)
    assert made is None and wrong(findings) == [f"text {REQUESTS}"]
    assert not findings.count("unchecked")


@pytest.mark.parametrize("column", ["value", "base_value"])
def test_an_answer_that_was_changed_is_found(column, run, tmp_path):
    rows = read_table(run.folder / ANSWERS, run.record.tasks.answers)
    place = rows["task"].index("more")
    rows[column][place] = 1 - rows[column][place]
    record = copy.deepcopy(run.record.document)
    record["tasks"]["answers"] = write_table(tmp_path / ANSWERS, pa.table(rows))
    findings = Findings()
    audit_answers(tmp_path, typed(record), findings)
    assert "tasks more acc,none pairs" in wrong(findings)
    assert ("tasks more acc,none" in wrong(findings)) == (column == "value")
    assert not any("ends" in each for each in wrong(findings))


def test_a_metric_that_was_changed_is_found(run):
    record = copy.deepcopy(run.record.document)
    record["tasks"]["groups"]["both"]["pairs"]["acc,none"]["lost"] += 1
    record["tasks"]["tasks"]["ends"]["metrics"]["acc,none"] += 0.01
    findings = Findings()
    audit_answers(run.folder, typed(record), findings)
    assert wrong(findings) == ["tasks ends acc,none", "tasks both acc,none pairs"]
