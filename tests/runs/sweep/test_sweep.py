"""Sweeps: the bits of single runs, what fails alone, what a second call does."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.models import edit_tensors
from support.sweeps import Apart, pair, scores_of, single, sweep_request
from support.tampered_runs import copy_model

from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.engines.torch import engine as torch_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import CheckpointError, RunFolderError, UsageError
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import find_runs, read_columns
from scoremode.runs.measure import measure
from scoremode.runs.sweep.manifest import held, read_manifest, unfinished
from scoremode.runs.sweep.sweep import run_sweep


@pytest.fixture
def built(monkeypatch) -> list[str]:
    """The names of the models that engines are built of, as they are."""
    names: list[str] = []
    build = torch_engine.build_engine

    def noted(checkpoint, *args):
        names.append(checkpoint.path.name)
        return build(checkpoint, *args)

    monkeypatch.setattr(torch_engine, "build_engine", noted)
    return names


@pytest.fixture(scope="module")
def short(text) -> str:
    return text[:2500]


def test_the_scores_are_those_of_single_runs_to_the_bit(base, quant, short, tmp_path):
    """With the base kept the same bytes; beside a base that runs the same numbers."""
    asked = pair(base, short)
    kept = measure(replace(single(asked, base, tmp_path / "kept"), reference=None, keep="stored"))
    stored = measure(replace(single(asked, quant, tmp_path / "a"), reference=str(kept.folder)))
    live = measure(single(asked, quant, tmp_path / "b"))
    outcome = run_sweep(sweep_request(tmp_path / "sweep", [quant, base], asked))
    assert outcome.failed == 0
    runs = [result for result in outcome.results if result is not None]
    assert scores_of(runs[0].folder) == scores_of(stored.folder)
    ours, theirs = (read_columns(r.folder / "scores.parquet")[0].columns() for r in (runs[0], live))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    # The base against itself, exactly.
    assert runs[1].record.document["metrics"]["kld"]["value"] == 0
    record = load_run(runs[0].folder)[0].document
    assert record["engine"]["tokens"] == stored.record.document["engine"]["tokens"]
    assert record["reference"]["sha256"] == stored.record.document["reference"]["sha256"]
    # Its head was left where it lies.
    (reference,) = (tmp_path / "sweep").glob("reference-*")
    assert not (reference / "head.safetensors").exists()


def test_what_is_broken_is_a_line_and_the_others_run(base, quant, short, tmp_path):
    spoilt, other = tmp_path / "spoilt", tmp_path / "unsupported"
    shutil.copytree(quant, other)
    (other / "config.json").write_text('{"model_type": "llama", "quantization_config": {"a": 1}}')
    copy_model(base.parent, spoilt)

    def spoil(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan

    edit_tensors(spoilt, spoil)
    told = []
    models = [tmp_path / "missing", spoilt, other, quant]
    asked = pair(base, short)
    outcome = run_sweep(sweep_request(tmp_path / "out", models, asked), tell=told.append)
    assert [result is not None for result in outcome.results] == [False, False, False, True]
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest["entries"] == outcome.manifest["entries"]
    lines = [entry["error"] for entry in manifest["entries"]]
    assert "no such folder" in str(lines[0]) and "window 0, position" in str(lines[1])
    assert "config_groups" in str(lines[2]) and lines[3] is None
    assert [entry["status"] for entry in manifest["entries"]] == ["failed"] * 3 + ["done"]
    assert sorted(ended.number for ended in told) == [1, 2, 3, 4]
    # As one alone, of a model without a number there is no run to be taken for one.
    # Sorted, since both may be of one second.
    found = [r["status"] for _, r in find_runs(tmp_path / "out") if "reference" in r]
    assert sorted(found) == ["done", "invalid"]


def test_without_its_base_nothing_runs(quant, short, tmp_path):
    asked = pair(tmp_path / "nowhere", short)
    with pytest.raises(Exception, match="nowhere"):
        run_sweep(sweep_request(tmp_path / "out", [quant], asked))
    assert not list(find_runs(tmp_path / "out"))


def test_a_second_call_runs_what_is_new_or_changed(base, quant, short, tmp_path, built):
    model = tmp_path / "model"
    shutil.copytree(quant, model)
    asked = pair(base, short)
    first = run_sweep(sweep_request(tmp_path / "out", [model], asked))
    assert built == ["model", "model"]
    built.clear()
    again = run_sweep(sweep_request(tmp_path / "out", [model, base], asked))
    # The base's reference is proven by what would make it; the quant's run by its files.
    assert built == ["model", "model"]
    assert again.results[0] is not None and first.results[0] is not None
    assert again.results[0].folder == first.results[0].folder
    built.clear()

    def change(tensors):
        name = next(name for name in tensors if name.endswith("weight_packed"))
        tensors[name][0] = 0

    edit_tensors(model, change)
    third = run_sweep(sweep_request(tmp_path / "out", [model], asked))
    assert third.results[0] is not None
    assert third.results[0].folder != first.results[0].folder
    assert scores_of(third.results[0].folder) != scores_of(first.results[0].folder)


def test_without_its_manifest_the_finished_runs_are_found_by_themselves(
    base, quant, short, tmp_path
):
    asked = sweep_request(tmp_path / "out", [quant], pair(base, short))
    first = run_sweep(asked)
    (tmp_path / "out" / "sweep.json").unlink()
    assert run_sweep(asked).results == first.results


def test_other_options_make_other_runs(base, quant, short, tmp_path):
    asked = pair(base, short)
    first = run_sweep(sweep_request(tmp_path, [quant], asked))
    other = replace(asked, options=replace(asked.options, batch_windows=1))
    second = run_sweep(sweep_request(tmp_path, [quant], other))
    assert first.results[0] is not None and second.results[0] is not None
    assert first.results[0].folder != second.results[0].folder


def test_the_base_of_a_caches_format_has_none(base, quant, short, tmp_path):
    """The model itself among the quants: its distance is the cache's alone."""
    asked = pair(base, short)
    assert isinstance(asked.options, TorchOptions)
    cached = replace(asked, options=replace(asked.options, kv_cache=parse_kv_cache("int4-g32")))
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant, base], cached))
    assert outcome.failed == 0
    runs = [result for result in outcome.results if result is not None]
    for result in runs:
        engine = result.record.document["reference"]["engine"]
        assert engine["kv_cache_dtype"] is None
        assert result.record.document["engine"]["kv_cache_dtype"] == "int4-g32"
        assert result.record.document["metrics"]["kld"]["value"] > 1e-5
    live = measure(replace(single(cached, base, tmp_path / "live"), reference=str(base)))
    assert live.record.document["reference"]["engine"]["kv_cache_dtype"] is None
    ours, theirs = (r.record.document["metrics"]["kld"]["value"] for r in (runs[1], live))
    assert ours == pytest.approx(theirs, rel=1e-6)
    plain = run_sweep(sweep_request(tmp_path / "out", [quant], asked)).results[0]
    assert plain is not None and plain.record.document["engine"]["kv_cache_dtype"] is None


def test_a_model_is_loaded_once_for_all_texts_and_protocols(base, quant, short, tmp_path, built):
    pairs = [pair(base, short), pair(base, short[:1500], 32)]
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant], *pairs))
    assert len(built) == 2 and outcome.failed == 0
    for asked, result in zip(pairs, outcome.results, strict=True):
        alone = measure(single(asked, quant, tmp_path / "alone"))
        assert result is not None
        ours = read_columns(result.folder / "scores.parquet")[0].columns()
        theirs = read_columns(alone.folder / "scores.parquet")[0].columns()
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
        # What the engine counts is of this run.
        assert (
            result.record.document["engine"]["tokens"] == alone.record.document["engine"]["tokens"]
        )
    references = {p["reference"] for p in outcome.manifest["pairs"]}
    assert len(references) == 2 and all((tmp_path / "out" / str(r)).is_dir() for r in references)


def test_one_model_under_two_names_is_measured_once(base, quant, short, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(quant, copy)
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant, copy], pair(base, short)))
    one, two = outcome.results
    assert one is not None and two is not None and one.folder == two.folder


def test_a_finished_run_is_taken_as_it_is_where_it_is_of_the_same(base, quant, short, tmp_path):
    asked = pair(base, short)
    done = measure(single(asked, quant, tmp_path / "a"))
    of_other = measure(single(pair(base, short[:1500]), quant, tmp_path / "b"))
    alone = measure(replace(single(asked, quant, tmp_path / "c"), reference=None))
    models = [done.folder, of_other.folder, alone.folder]
    outcome = run_sweep(sweep_request(tmp_path / "out", models, asked))
    assert outcome.results[0] is not None and outcome.results[0].folder == done.folder
    assert outcome.results[1:] == [None, None]
    lines = [entry["error"] for entry in outcome.manifest["entries"]]
    assert "is of another plan" in str(lines[1]) and "no base" in str(lines[2])


def test_a_finished_run_of_one_text_of_several_is_no_failure(base, quant, short, tmp_path):
    pairs = [pair(base, short), pair(base, short[:1500])]
    done = [measure(single(asked, quant, tmp_path / "runs")).folder for asked in pairs]
    told = []
    outcome = run_sweep(sweep_request(tmp_path / "out", done, *pairs), tell=told.append)
    found = [None if result is None else result.folder for result in outcome.results]
    assert found == [done[0], None, None, done[1]] and outcome.failed == 0
    statuses = ["done", "left out", "left out", "done"]
    assert [entry["status"] for entry in outcome.manifest["entries"]] == statuses
    assert [entry["error"] for entry in outcome.manifest["entries"]] == [None] * 4
    assert len(told) == 4 and unfinished(tmp_path / "out") == []


def test_a_kept_reference_is_the_base_as_it_is(base, quant, short, tmp_path, built):
    asked = pair(base, short)
    kept = measure(replace(single(asked, base, tmp_path / "kept"), reference=None, keep="stored"))
    built.clear()
    request = replace(asked, reference=str(kept.folder))
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant], request))
    assert outcome.failed == 0 and built == [quant.name]
    assert outcome.manifest["pairs"][0]["reference"] == str(kept.folder)


@pytest.mark.usefixtures("warm_children")
def test_an_engine_that_wants_a_process_for_each_model_gets_one(base, quant, short, tmp_path):
    asked = pair(base, short)
    here = run_sweep(sweep_request(tmp_path / "here", [quant], asked))
    apart = replace(asked, options=Apart(**vars(asked.options)))
    models = [quant, tmp_path / "missing"]
    there = run_sweep(sweep_request(tmp_path / "apart", models, apart))
    assert here.results[0] is not None and there.results[0] is not None
    assert scores_of(here.results[0].folder) == scores_of(there.results[0].folder)
    assert there.results[1] is None


def test_two_sweeps_in_one_folder_and_several_devices_are_refused(base, quant, short, tmp_path):
    asked = pair(base, short)
    with held(tmp_path), pytest.raises(RunFolderError, match="another sweep is writing"):
        run_sweep(sweep_request(tmp_path, [quant], asked))
    with pytest.raises(UsageError, match="several devices"):
        run_sweep(sweep_request(tmp_path, [quant], replace(asked, ranks=object())))  # pyright: ignore
    early = replace(asked, protocol=replace(asked.protocol, stop_when="kld ±5 %"))
    with pytest.raises(UsageError, match="is for one MODEL"):
        run_sweep(sweep_request(tmp_path, [quant], early))


def test_a_tokenizer_that_is_nowhere_is_an_error(base, quant, short, tmp_path):
    asked = replace(pair(base, short), tokenizer=str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match=r"none: no such folder"):
        run_sweep(sweep_request(tmp_path / "out", [quant], asked))
