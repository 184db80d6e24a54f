"""The audit's second look for the calibration text."""

import json
from types import SimpleNamespace

import pytest
from msgspec import UNSET

from scoremode.results.audit.findings import Findings
from scoremode.results.record.section import decode
from scoremode.results.record.text import Calibration
from scoremode.runs.check.inputs import Sources
from scoremode.runs.check.text import audit_calibration
from scoremode.text.calibration import calibration_of_file
from scoremode.text.plan import make_plan
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import load_tokenizer


@pytest.fixture
def made(demo, tmp_path):
    tokenizer = load_tokenizer(demo / "model")
    text = (demo / "heldout.txt").read_text()[:3000]
    ids = tokenizer.encode(text, special_tokens=False)
    plan = make_plan(ids, Protocol("test", context_length=64, tail="keep").resolve(None))
    file = tmp_path / "half.txt"
    file.write_text(text[:1500])
    return (
        file,
        (plan, tokenizer),
        calibration_of_file(file).looked_for(plan, tokenizer).section(plan),
    )


def found(section, made, **sources):
    findings = Findings()
    record = SimpleNamespace(
        calibration=decode(section, Calibration), document={"calibration": section}
    )
    audit_calibration(record, made, Sources(**sources), findings)
    return {f.name: (f.status, f.words) for f in findings.found}


def test_what_was_found_is_found_again(made):
    _, plan, section = made
    section = json.loads(json.dumps(section))
    statuses = found(section, plan)
    assert set(statuses) >= {"source", "share", "targets", "tokens"}
    assert {status for status, _ in statuses.values()} == {"held"}
    statuses = found(section | {"share": section["share"] / 2}, plan)
    assert [name for name, (status, _) in statuses.items() if status == "wrong"] == ["share"]


def test_another_file_is_wrong_and_none_is_not_checked(made):
    file, plan, section = made
    file.write_text("another text")
    assert found(section, plan)["source"][0] == "wrong"
    file.unlink()
    assert found(section, plan)["share"] == ("unchecked", f"{file} is not here")
    assert "--fetch" in found(section | {"source": "hub:o/d@1"}, plan)["share"][1]
    assert found(section, None)["share"][0] == "unchecked"
    findings = Findings()
    audit_calibration(SimpleNamespace(calibration=UNSET), plan, Sources(), findings)
    assert not findings.found
