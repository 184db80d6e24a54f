"""A run's text and token ids, found again by what its record says of them."""

import gzip
import json
from types import SimpleNamespace

import pytest
from support.records import typed

from scoremode.errors import CorpusError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import read_columns, read_record
from scoremode.runs.check.inputs import Sources, protocol_of
from scoremode.runs.check.text import (
    audit_protocol,
    audit_targets,
    audited_plan,
    kept_plan,
)
from scoremode.text.corpus import from_dataset_file
from scoremode.text.protocol import PRESETS, preset


def audited(record, sources=None):
    findings = Findings()
    found = audited_plan(typed(record), sources or Sources(), findings)
    return found, {f"{f.part} {f.name}": (f.status, f.words) for f in findings.found}


def test_a_text_of_the_command_line_is_read_from_the_record(published):
    record = read_record(published.ppl)
    text = published.text.read_text()
    record["corpus"] |= {"source": "argument", "name": "text"}
    record["command"] = ["scoremode", "ppl", "m", f"--text={text}"]
    found, said = audited(record)
    assert found is not None and said["text sha256"][0] == "held"
    record["command"] = ["scoremode", "ppl", "m"]
    found, said = audited(record)
    assert found is None and "was given on the command line" in said["text sha256"][1]


def test_a_data_set_of_the_hub_is_fetched_only_when_that_is_asked_for(published, monkeypatch):
    record = read_record(published.ppl)
    record["corpus"] |= {"source": "hub:org/set@" + "ab" * 20, "name": "set v1 test", "rows": 2}
    found, said = audited(record)
    assert found is None and "--fetch gets it from the hub" in said["text sha256"][1]
    asked = []

    def from_hub(*args, **more):
        asked.append((args, more))
        raise CorpusError("no network")

    monkeypatch.setattr("scoremode.runs.texts.hub.from_hub", from_hub)
    found, said = audited(record, Sources(fetch=True))
    assert asked == [
        (
            ("org/set", "v1"),
            {"split": "test", "text_field": "text", "revision": "ab" * 20, "group_by": None},
        )
    ]
    assert found is None and "no network" in said["text sha256"][1]


def test_the_same_text_from_another_file_holds_and_its_hash_is_not_compared(published, tmp_path):
    """The hash of a file that the user gives, that is; at the record's own place it is compared."""
    record, rows = read_record(published.ppl), tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": published.text.read_text()}))
    corpus = from_dataset_file(rows, "text")
    record["corpus"] |= corpus.to_json()
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(rows.read_bytes()))
    for sources, status in ((Sources(), "held"), (Sources(files=(packed,)), "unchecked")):
        found, said = audited(record, sources)
        assert found is not None and said["text sha256"][0] == "held"
        assert said["text source's sha256"][0] == status
    record["corpus"]["source_sha256"] = "00" * 32
    found, said = audited(record)
    assert found is not None and said["text source's sha256"][0] == "wrong"


def test_a_protocol_of_another_release_is_refused_by_its_field(published):
    record = read_record(published.ppl)
    assert protocol_of(typed(record)).sha256 == record["protocol"]["sha256"]
    record["protocol"]["own"] = 1
    with pytest.raises(CorpusError, match="its protocol has own, which this release doesn't know"):
        protocol_of(typed(record))


def test_the_plan_is_told_by_the_token_ids_that_a_reference_keeps(published):
    findings = Findings()
    record = read_record(published.against_kept)
    plan = kept_plan(published.against_kept, typed(record), Sources(), findings)
    assert plan is not None and plan.sha256 == record["plan"]["sha256"]
    assert [f.status for f in findings.found] == ["held"]
    alone = read_record(published.ppl)
    assert kept_plan(published.ppl, typed(alone), Sources(), findings) is None


def test_a_column_that_the_text_does_not_give_is_told(published):
    record = read_record(published.ppl)
    found, _ = audited(record)
    assert found is not None
    scores, extras = read_columns(published.ppl / "scores.parquet")
    classes = extras["token_class"].copy()
    classes[7] += 1
    findings = Findings()
    audit_targets(typed(record), *found, scores, extras | {"token_class": classes}, findings)
    (wrong,) = (f for f in findings.found if f.status == "wrong")
    assert wrong.name == "token_class" and "row 7 has" in wrong.words and "(1 of" in wrong.words


def under(protocol):
    return SimpleNamespace(document={"protocol": protocol})


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "changes", [{}, {"context_length": 1024, "bos": "never", "max_windows": 7}]
)
def test_every_protocol_has_the_rules_that_its_name_tells(name, changes):
    if name == "lm-eval":
        # Of pages nothing else can be changed.
        changes = changes and {"context_length": 1024, "vocabulary": "head"}
    protocol = preset(name).override(**changes).resolve(4096)
    findings = Findings()
    audit_protocol(under(protocol.to_json() | {"sha256": protocol.sha256}), findings)
    assert [(f.status, f.words) for f in findings.found] == [("held", protocol.name)]


def test_a_name_that_no_protocol_has_is_not_checked():
    protocol = preset("disjoint").to_json() | {"name": "mine"}
    findings = Findings()
    audit_protocol(under(protocol), findings)
    audit_protocol(under(preset("gptq").to_json() | {"name": "gptq+own=1"}), findings)
    assert [f.status for f in findings.found] == ["unchecked", "wrong"]


def test_a_copy_of_the_text_by_another_name_is_the_text(published, tmp_path):
    copy = tmp_path / "copy.txt"
    copy.write_bytes(published.text.read_bytes())
    found, said = audited(read_record(published.ppl), Sources(files=(copy,)))
    assert found is not None and said["text sha256"][0] == "held"
    assert said["text name"] == (
        "unchecked",
        "the record calls it text.txt, and the file given is copy.txt",
    )
