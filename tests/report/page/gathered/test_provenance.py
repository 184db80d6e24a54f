"""What made a run, as its record says it."""

import json

from scoremode.report.page.gathered.provenance import provenance


def test_it_is_what_the_record_says(made_report):
    record = json.loads((made_report.folders["a"] / "record.json").read_text())
    found = provenance(record)
    assert found["command"] == record["command"] and found["seconds"] == record["seconds"]
    assert found["hashes"]["record"] == record["sha256"]
    assert found["hashes"]["scores.parquet"] == record["scores"]["sha256"]
    assert found["hashes"]["reference"] == record["reference"]["sha256"]
    assert found["files"] == record["checkpoint"]["files"] and found["more_files"] == 0
    facts = {fact["label"]: fact["value"] for fact in found["facts"]}
    assert "bfloat16" in facts["arithmetic"] and facts["device"].startswith("made")
    run = next(r for r in made_report.section["runs"] if r["name"] == "a")
    assert run["provenance"] == found


def test_of_many_files_some_are_named_and_the_rest_counted(made_report):
    record = json.loads((made_report.folders["a"] / "record.json").read_text())
    record["checkpoint"]["files"] = {f"model-{i:05}.safetensors": "00" * 32 for i in range(30)}
    del record["versions"]
    found = provenance(record)
    assert next(iter(found["files"])) == "model-00000.safetensors"
    assert len(found["files"]) + found["more_files"] == 30 and found["more_files"] == 18
    assert found["versions"] == {}
