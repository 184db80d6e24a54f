"""A record by itself: every section that is not as it must be is told, not the first alone."""

import json
import shutil

import pytest

from scoremode.errors import RunFolderError
from scoremode.results.audit.findings import Findings
from scoremode.results.audit.numbers import audited_record
from scoremode.results.folders.store import read_record, seal_of


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
