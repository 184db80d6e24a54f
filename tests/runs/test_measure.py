"""Runs: what is refused, what is written, what a kill leaves behind."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.models import edit_config, edit_tensors
from support.tampered_runs import Stop, copy_model, interrupted_after, run

from scoremode.errors import (
    EngineError,
    InvalidMeasurement,
    RunFolderError,
    UsageError,
)
from scoremode.results.folders.store import (
    find_runs,
)
from scoremode.runs.measure import measure


def test_without_pyarrow_nothing_is_loaded(request_, monkeypatch):
    """Beside a vLLM that was left alone (--no-deps) it would fail when the first scores are there."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EngineError, match="package pyarrow is not installed: pip install pyarrow"):
        measure(replace(request_, model="/no/such/model"))
    assert not request_.output.exists()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_weight_makes_the_run_invalid(bad, request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)

    def spoil(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = bad

    edit_tensors(model, spoil)
    words = r"window 0, position .*: tensor model\.layers\.1\.mlp\.up_proj\.weight has values"
    with pytest.raises(InvalidMeasurement, match=words):
        measure(replace(request_, model=str(model)))


def test_record_says_what_was_measured(request_, demo):
    record = measure(replace(request_, command=("scoremode", "ppl"))).record.document
    assert record["schema"] == "scoremode.record" and record["schema_version"] == 2
    assert record["corpus"]["text"]["sha256"] and record["tokenizer"]["sha256"]
    files = record["checkpoint"]["files"]
    assert set(files) == {"config.json", "model.safetensors"}
    assert record["protocol"]["name"] == "disjoint+context-length=64"
    assert record["engine"]["dtype"] == "float32"
    assert record["engine"]["arithmetic"] == "weights"
    assert set(record["engine"]["seconds"]) == {"load", "embed", "decode", "layers", "head"}
    assert record["engine"]["peak_bytes"] > 0
    assert record["versions"]["torch"]
    json.dumps(record, allow_nan=False)


def test_same_run_twice_gives_the_same_bits(request_):
    one, two = measure(request_), measure(request_)
    assert one.folder != two.folder
    assert (one.folder / "scores.parquet").read_bytes() == (
        two.folder / "scores.parquet"
    ).read_bytes()
    assert one.record.document["metrics"] == two.record.document["metrics"]


def test_resuming_a_finished_run_tells_its_result(request_):
    done = run(request_)
    lines = []
    again = measure(replace(request_, resume=True, output=done.folder), notify=lines.append)
    assert again.record.document == done.record.document and "finished" in lines[0]


def other_weights(tensors):
    tensors["model.norm.weight"].mul_(1.5)


def test_weights_changed_between_kill_and_resume_are_another_run(request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)
    request = replace(request_, model=str(model))
    with pytest.raises(Stop):
        run(request, interrupted_after(1))
    ((killed, _),) = find_runs(request.output)
    edit_tensors(model, other_weights)
    with pytest.raises(RunFolderError, match=r"model\.safetensors has changed"):
        measure(replace(request, resume=True, output=killed))
    fresh = measure(replace(request, resume=True))
    assert fresh.folder != killed
    assert fresh.record.document["metrics"] == measure(request).record.document["metrics"]


def test_another_model_of_the_same_shape_never_gets_a_finished_runs_result(
    request_, demo, tmp_path
):
    model = tmp_path / "model"
    copy_model(demo, model)
    edit_tensors(model, other_weights)
    first = measure(request_)
    other = replace(request_, model=str(model), resume=True)
    second = measure(other)
    assert second.folder != first.folder
    assert second.record.document["metrics"]["ppl"] != first.record.document["metrics"]["ppl"]
    with pytest.raises(RunFolderError, match=r"model\.safetensors has changed"):
        measure(replace(other, output=first.folder))


def test_an_unreadable_neighbour_does_not_stop_a_resume(request_):
    for name, text in (("x", "[]"), ("y", "{"), ("z", "{}")):
        (request_.output / name).mkdir(parents=True)
        (request_.output / name / "record.json").write_text(text)
    assert measure(replace(request_, resume=True)).record.document["status"] == "done"


def test_code_that_a_checkpoint_brings_is_named_and_not_run(request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)
    edit_config(model, auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    lines: list[str] = []
    record = measure(replace(request_, model=str(model)), notify=lines.append).record.document
    assert "auto_map" in lines[0] and "LlamaForCausalLM" in lines[0]
    assert record["engine"]["model_class"].endswith("LlamaForCausalLM")


def test_a_stated_quantization_that_is_not_there_is_refused(request_):
    with pytest.raises(UsageError, match="not quantized"):
        measure(replace(request_, quantization="compressed-tensors"))
