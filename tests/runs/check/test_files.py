"""The files of a run: each byte of the model, the base and what is kept of it counts."""

import json
import shutil

import pytest
from support.forged_runs import flipped, wrong

from scoremode.runs.check.check import check
from scoremode.runs.check.inputs import Sources


def test_a_model_with_one_bit_changed_is_told_by_its_file(published, tmp_path):
    model = shutil.copytree(published.quant, tmp_path / "model")
    flipped(model / "model.safetensors")
    found = wrong(check([published.ppl], Sources(model=str(model))))
    assert list(found) == ["checkpoint model.safetensors"]
    (model / "modeling_own.py").write_text("")
    found = wrong(check([published.ppl], Sources(model=str(model))))
    assert "no such file" in found["checkpoint modeling_own.py"]


def test_a_tokenizer_that_was_changed_is_told(published, tmp_path):
    model = shutil.copytree(published.quant, tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"add_bos_token": False}))
    found = wrong(check([published.ppl], Sources(model=str(model), tokenizer=str(model))))
    assert "tokenizer sha256" in found and "checkpoint fingerprint" not in found


def test_a_base_that_ran_beside_is_known_by_its_files(published, tmp_path):
    base = shutil.copytree(published.model, tmp_path / "base")
    flipped(base / "model.safetensors")
    found = wrong(check([published.against_model], Sources(reference=str(base))))
    assert list(found) == ["reference model.safetensors"]


@pytest.mark.parametrize("file", ["states", "head", "tokens"])
def test_a_kept_base_whose_files_are_damaged_is_told(file, published, tmp_path):
    kept = shutil.copytree(published.kept, tmp_path / "kept")
    damaged = next(p for p in sorted(kept.rglob("*")) if p.is_file() and file in str(p))
    flipped(damaged)
    found = wrong(check([published.against_kept], Sources(reference=str(kept))))
    assert list(found) == ["reference kept files"]
    assert list(wrong(check([kept]))) == ["kept files"]


def test_another_reference_is_told(published, tmp_path):
    record = json.loads((published.against_kept / "record.json").read_text())
    result = check([published.against_kept], Sources(reference=str(tmp_path)))
    left = [f["words"] for f in result["runs"][0]["findings"] if f["status"] == "unchecked"]
    assert any("there is no reference in" in words for words in left)
    assert record["reference"]["states_sha256"]
    found = wrong(check([published.against_kept], Sources(reference=str(published.ppl))))
    assert "kept no states" in found["reference states"]
