"""What a sweep would do."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.sweeps import OPTIONS, pair, sweep_request

from scoremode.errors import CheckpointError
from scoremode.results.folders.store import find_runs
from scoremode.runs.sweep import dry_run
from scoremode.runs.sweep.dry_run import foresee
from scoremode.runs.sweep.sweep import run_sweep


def test_before_and_after_a_sweep(base, quant, text, tmp_path):
    output, asked = tmp_path / "out", pair(base, text[:1500])
    request = sweep_request(output, [quant, tmp_path / "missing"], asked)
    value = foresee(request)
    states = [(row["is_base"], row["state"], row["source"]) for row in value["rows"]]
    assert states == [(True, "to run", "here"), (False, "to run", "here"),
                      (False, "failed", "hub cache")]  # fmt: skip
    files = [f.stat().st_size for m in (base, quant) for f in m.glob("*.safetensors")]
    assert value["bytes"] == sum(files) and value["to_run"] == 2 and value["seconds"] is None
    assert not output.exists()
    run_sweep(request)
    (seconds,) = (r["seconds"]["total"] for _, r in find_runs(output) if "reference" in r)
    longer = sweep_request(output, [quant, base], asked, pair(base, text[:3000]))
    value = foresee(longer)
    found = {(row["model"], row["pair"]): row for row in value["rows"] if not row["is_base"]}
    assert found[str(quant), 0]["state"] == "done"
    assert found[str(quant), 1]["state"] == found[str(base), 0]["state"] == "to run"
    # As many tokens as the run that is there, and about twice as many.
    assert found[str(base), 0]["seconds"] == pytest.approx(seconds)
    assert 1.5 < found[str(quant), 1]["seconds"] / seconds < 2.5
    assert [r["state"] for r in value["rows"] if r["is_base"]] == ["done", "to run"]
    # Of each what is left under one text or both, once.
    assert value["to_run"] == 4 and value["bytes"] == sum(files) + files[0]
    # Two texts of one name.
    assert len(set(value["pairs"])) == 1 and value["pairs"][0].startswith("argument, ")


@pytest.mark.parametrize(
    "change", [{"full": True}, {"noise_floor": "auto"}, {"token_text": True}, {"dtype": "bfloat16"}]
)
def test_a_run_with_other_flags_is_not_the_one_that_is_there(change, swept, base, quant, text):
    """As `run_sweep` has it, which runs it anew."""
    asked = pair(base, text[:1500])
    if "dtype" in change:
        asked = replace(asked, options=replace(OPTIONS, **change))
    else:
        asked = replace(asked, **change)
    request = sweep_request(swept, [quant], asked)
    states = [row["state"] for row in foresee(request)["rows"]]
    assert states == ["to run" if "dtype" in change else "done", "to run"]
    before = {folder for folder, _ in find_runs(swept)}
    (result,) = run_sweep(request).results
    assert result is not None and result.folder not in before
    assert [row["state"] for row in foresee(request)["rows"]] == ["done", "done"]


@pytest.fixture(scope="module")
def swept(base, quant, text, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("sweep") / "out"
    run_sweep(sweep_request(output, [quant], pair(base, text[:1500])))
    return output


def test_a_finished_run_and_a_kept_base_are_there_already(base, quant, text, tmp_path):
    asked = pair(base, text[:1500])
    done = run_sweep(sweep_request(tmp_path / "a", [quant], asked))
    assert done.results[0] is not None
    kept = str(tmp_path / "a" / str(done.manifest["pairs"][0]["reference"]))
    models = [done.results[0].folder, quant]
    value = foresee(sweep_request(tmp_path / "b", models, replace(asked, reference=kept)))
    assert [(r["state"], r["source"]) for r in value["rows"]] == [
        ("done", "run"),
        ("to run", "here"),
    ]


def test_a_model_of_the_hub_counts_with_the_bytes_to_fetch(base, text, tmp_path, monkeypatch):
    sizes = {"o/r": 1000, "o/g:Q4_K_M": 500}

    def asked(model, revision):
        if model not in sizes:
            raise CheckpointError(f"{model}: not to be had")
        return sizes[model]

    monkeypatch.setattr(dry_run, "hub_bytes", asked)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    models = ["o/r", "o/g:Q4_K_M", "o/none"]
    value = foresee(sweep_request(tmp_path / "out", models, pair(base, text[:1500])))
    rows = value["rows"][1:]
    assert [(r["state"], r["source"], r["download"]) for r in rows] == [
        ("to run", "hub", 1000),
        ("to run", "hub", 500),
        ("failed", "hub", None),
    ]
    assert value["download"] == 1500 and "not to be had" in rows[2]["error"]


def test_a_quant_that_can_t_be_decoded_is_not_to_run(base, quant, text, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(quant, broken)
    config = json.loads((broken / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 9
    (broken / "config.json").write_text(json.dumps(config))
    value = foresee(sweep_request(tmp_path / "out", [str(broken)], pair(base, text[:1500])))
    assert value["rows"][-1]["state"] == "failed" and "9" in value["rows"][-1]["error"]
    assert value["to_run"] == 1
