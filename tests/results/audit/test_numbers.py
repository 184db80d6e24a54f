"""Every number of a record that its scores give, one off at a time: each is told."""

import copy
import json
import shutil

import numpy as np
import pytest
from support.record_fields import changed, paths
from support.records import typed

from scoremode.errors import RunFolderError
from scoremode.results.audit.findings import Findings
from scoremode.results.audit.numbers import audit_numbers, audited_record, audited_scores
from scoremode.results.folders.store import read_columns, read_record, seal_of
from scoremode.results.scores import Scores

SECTIONS = ("metrics", "distribution", "breakdown", "llama_cpp", "intervals", "gates", "worst")
# A group's own numbers are tried in one of each kind of group; all groups are made by one function.
MOST = 4


@pytest.fixture(scope="module")
def comparison(real_runs):
    record = read_record(real_runs["kld"])
    return record, *read_columns(real_runs["kld"] / "scores.parquet")


def wrong_after(record, scores, extras, folder) -> list[str]:
    findings = Findings()
    audit_numbers(folder, typed(record), scores, extras, findings)
    return [f"{f.part} {f.name}" for f in findings.found if f.status == "wrong"]


def test_each_number_that_is_off_is_told(comparison, real_runs, monkeypatch):
    record, scores, extras = comparison
    folder = real_runs["kld"]
    # What is made of the scores is the same each time.
    from scoremode.results.audit import numbers

    made = numbers.remade(typed(record), scores, extras)
    monkeypatch.setattr(numbers, "remade", lambda *_: copy.deepcopy(made))
    assert wrong_after(record, scores, extras, folder) == []
    places = [p for p in paths(record, most=MOST) if p[0] in SECTIONS]
    tried = 0
    for path in places:
        value = record
        for key in path:
            value = value[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # A gate's limit is the user's.
        if not is_number or path[-1] == "limit":
            continue
        other = changed(record, path, "nudge", None)
        tried += 1
        assert wrong_after(other, scores, extras, folder), path
    assert tried > 100


def test_another_releases_intervals_are_not_compared_and_its_numbers_are(comparison, real_runs):
    record, scores, extras = comparison
    record = copy.deepcopy(record)
    record["versions"]["numpy"] = "1.0"
    record["metrics"]["kld"]["ci95"] = [0.0, 9.0]
    findings = Findings()
    audit_numbers(real_runs["kld"], typed(record), scores, extras, findings)
    assert findings.count("wrong") == 0
    left = {f.name: f.words for f in findings.found if f.status == "unchecked"}
    assert left["kld interval"].startswith("not compared: made by numpy 1.0, and here is ")
    record["metrics"]["kld"]["value"] += 1
    findings = Findings()
    audit_numbers(real_runs["kld"], typed(record), scores, extras, findings)
    assert next(f.name for f in findings.found if f.status == "wrong") == "kld"


def test_a_section_or_a_metric_that_the_scores_do_not_give_is_told(comparison, real_runs):
    record, scores, extras = comparison
    alone = Scores.from_columns(
        {
            k: v
            for k, v in scores.columns().items()
            if not k.startswith(("base", "kld", "tv", "jsd", "model_entropy", "topk"))
        }
    )
    findings = Findings()
    audit_numbers(real_runs["kld"], typed(record), alone, extras, findings)
    told = {f"{f.part} {f.name}" for f in findings.found if f.status == "wrong"}
    assert {"metrics kld", "distribution all", "breakdown all"} <= told


def test_columns_that_no_run_has_are_told(tmp_path, real_runs):
    import pyarrow as pa
    import pyarrow.parquet as pq

    scores, _ = read_columns(real_runs["ppl"] / "scores.parquet")
    record = read_record(real_runs["ppl"])
    for name, column, words in (
        ("index", scores.index - 5, "its column index has -"),
        ("logprob", scores.logprob.astype(np.float32), "is of float32, not float64"),
    ):
        pq.write_table(pa.table(scores.columns() | {name: column}), tmp_path / "scores.parquet")
        findings = Findings()
        assert audited_scores(tmp_path, typed(record), findings) is None
        assert words in findings.found[-1].words


@pytest.fixture
def audit(whole, tmp_path):
    """Audits a copy of a whole run whose record was changed, and resealed unless that is False."""

    def work(change, *, resealed=True):
        folder = shutil.copytree(whole, tmp_path / "run", dirs_exist_ok=True)
        record = read_record(folder)
        change(record)
        if resealed:
            record["sha256"] = seal_of(record)
        (folder / "record.json").write_text(json.dumps(record))
        findings = Findings()
        sound = audited_record(folder, findings)
        return sound, [f for f in findings.found if f.status == "wrong"]

    return work


def test_a_true_record_is_sound(audit, whole):
    sound, wrong = audit(lambda _: None)
    assert sound.document == read_record(whole) and wrong == []


def test_every_section_that_is_wrong_is_told(audit):
    def change(record):
        record.update(checkpoint=[], plan=None)
        record["metrics"]["ppl"]["value"] = "4"
        del record["engine"]

    sound, wrong = audit(change)
    assert sound is None
    said = " ".join(f.words for f in wrong)
    for words in ("checkpoint is []", "plan is None", "metrics.ppl.value is '4'", "has no engine"):
        assert words in said
    assert len(wrong) == 4


def test_the_seal_and_the_schema_are_told(audit):
    _, wrong = audit(lambda r: r.update(created="2020"), resealed=False)
    assert [f.name for f in wrong] == ["seal"]
    sound, wrong = audit(lambda r: r.update(schema_version=3))
    assert sound is None and "newer scoremode's" in wrong[0].words
    sound, wrong = audit(lambda r: r.update(schema_version=1))
    assert sound is None and "version 1, not" in wrong[0].words


def test_what_stands_twice_must_be_the_same(audit):
    _, wrong = audit(lambda r: r["identity"].update(plan="00" * 32))
    assert [f.name for f in wrong] == ["identity.plan"]


def test_a_run_that_is_not_done_is_refused(audit, tmp_path):
    with pytest.raises(
        RunFolderError, match=r"is not done: its status is 'invalid' \(nll is nan\)"
    ):
        audit(lambda r: r.update(status="invalid", reason="nll is nan"))
    with pytest.raises(RunFolderError, match=r"there is no record\.json"):
        audited_record(tmp_path, Findings())
