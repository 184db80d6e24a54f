"""Runs: what is refused, what is written, what a kill leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from models import edit_config, edit_tensors

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.builder import build_engine
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import (
    CheckpointError,
    EngineError,
    InvalidMeasurement,
    RunFolderError,
    TokenizerError,
    UsageError,
)
from scoremode.results.folders.store import (
    SCORES,
    RunFolder,
    find_runs,
    read_columns,
    read_record,
)
from scoremode.results.record.sections import sections
from scoremode.results.scores import Comparison, Scores, concatenate
from scoremode.runs.measure import Request, measure, run_plan
from scoremode.runs.planning import plan_text
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset


@pytest.fixture(scope="module")
def text(demo) -> str:
    return (demo / "heldout.txt").read_text(encoding="utf-8")[:9000]


@pytest.fixture
def request_(demo, text, tmp_path) -> Request:
    return Request(
        model=str(demo / "model"),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=64),
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=2),
        output=tmp_path / "runs",
    )


class Tampering:
    """The real engine with its results changed on the way out, three passes of them."""

    def __init__(self, engine: TorchEngine, tamper):
        self._engine, self._tamper = engine, tamper
        self.vocabulary = engine.vocabulary
        self.identity, self.describe = engine.identity, engine.describe
        self.close, self.head_tensors = engine.close, engine.head_tensors

    def schedule(self, plan):
        return Schedule(pass_windows=-(-len(plan) // 3), batch_windows=2)

    def score(self, plan, schedule, first_pass=0, progress=None, extras=None):
        yield from self._tamper(self._engine.score(plan, schedule, first_pass, progress, extras))


@cache
def loaded(model: str, options: TorchOptions, vocabulary: int | None) -> TorchEngine:
    return build_engine(open_checkpoint(model), options, vocabulary)


def run(request, tamper=lambda parts: parts):
    planned = plan_text(request.corpus, request.protocol, model=request.model)

    def engine(checkpoint, vocabulary):
        return Tampering(loaded(request.model, request.options, vocabulary), tamper)

    return run_plan(request, open_checkpoint(request.model), planned, engine)


def each(change):
    return lambda parts: (change(part) for part in parts)


def rows(scores: Scores, keep) -> Scores:
    return Scores(**{name: column[keep] for name, column in scores.columns().items()})


def shifted(scores: Scores, by: int, *names: str) -> Scores:
    return replace(scores, **{name: np.roll(getattr(scores, name), by) for name in names})


def easy_ones(scores: Scores) -> Scores:
    return rows(scores, scores.logprob > np.log(0.001))


SEED_BUGS = {
    "logprobs one late": each(lambda s: shifted(s, 1, "logprob")),
    "logprobs one early": each(lambda s: shifted(s, -1, "logprob")),
    "logprobs and top-1 one late": each(lambda s: shifted(s, 1, "logprob", "top1", "top1_logprob")),
    "targets one late": each(lambda s: shifted(s, 1, "target")),
    "everything one late": each(lambda s: rows(s, np.r_[0, 0 : len(s) - 1])),
    "hard targets skipped": each(easy_ones),
    "one target dropped": each(lambda s: rows(s, np.arange(len(s)) != 17)),
    "last target missing": each(lambda s: rows(s, slice(None, -1))),
    "first window missing": each(lambda s: rows(s, s.window != s.window[0])),
    "a target twice": each(lambda s: rows(s, np.r_[0, 0 : len(s)])),
    "a pass missing": lambda parts: list(parts)[:-1],
    "a pass twice": lambda parts: (parts := list(parts)) + parts[-1:],
    "passes swapped": lambda parts: list(parts)[::-1],
    "all in one": lambda parts: [concatenate(list(parts))],
    "a probability above one": each(lambda s: replace(s, logprob=s.logprob + 3)),
}


def test_without_pyarrow_nothing_is_loaded(request_, monkeypatch):
    """Beside a vLLM that was left alone (--no-deps) it would fail when the first scores are there."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EngineError, match="package pyarrow is not installed: pip install pyarrow"):
        measure(replace(request_, model="/no/such/model"))
    assert not request_.output.exists()


@pytest.mark.parametrize("bug", SEED_BUGS)
def test_the_seeds_bugs_are_refused_not_averaged(bug, request_):
    with pytest.raises(InvalidMeasurement):
        run(request_, SEED_BUGS[bug])
    ((folder, record),) = find_runs(request_.output)
    assert record["status"] == "invalid" and record["reason"]
    assert "metrics" not in record
    assert {p.name for p in folder.iterdir()} == {"record.json"}


def test_the_untampered_engine_passes(request_):
    result = run(request_)
    assert result.record["status"] == "done"
    assert result.record["metrics"]["ppl"]["n"] == result.record["plan"]["scored"]


def test_a_non_finite_score_names_window_and_position(request_):
    def spoil(scores):
        logprob = scores.logprob.copy()
        logprob[70] = np.nan
        return replace(scores, logprob=logprob)

    with pytest.raises(InvalidMeasurement, match=r"window 1, position 8\b") as error:
        run(request_, each(spoil))
    assert error.value.exit_code == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_weight_makes_the_run_invalid(bad, request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)

    def spoil(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = bad

    edit_tensors(model, spoil)
    with pytest.raises(InvalidMeasurement, match="window 0, position"):
        measure(replace(request_, model=str(model)))


def copy_model(demo: Path, target: Path) -> None:
    target.mkdir()
    for file in (demo / "model").iterdir():
        (target / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize("protocol", ["disjoint", "score-mode", "strided", "hf-strided", "gptq"])
def test_every_metric_is_recomputed_from_the_parquet(protocol, request_):
    rules = preset(protocol).override(
        context_length=64, stride=None if protocol in ("disjoint", "gptq") else 24
    )
    result = measure(replace(request_, protocol=rules))
    scores, extras = read_columns(result.folder / SCORES)
    weights = extras.get("weight")
    assert (weights is not None) == (protocol == "hf-strided")
    again = sections(scores, 64, extras)["metrics"]
    assert again == result.record["metrics"] == read_record(result.folder)["metrics"]
    w = np.ones(len(scores)) if weights is None else weights
    assert again["ppl"]["value"] == pytest.approx(
        np.exp((scores.nll * w).sum() / w.sum()), rel=1e-12
    )
    of_bytes = (scores.nll * w).sum() / np.log(2) / (extras["token_bytes"] * w).sum()
    assert again["bits_per_byte"]["value"] == pytest.approx(of_bytes, rel=1e-12)


def test_bits_per_byte_are_of_the_text_s_bytes(request_, text):
    """All but the first token is scored once, and a BOS, which has no bytes, is the first."""
    record = measure(
        replace(request_, protocol=preset("strided").override(context_length=64, stride=32))
    ).record
    metrics = record["metrics"]
    bits = metrics["nll"]["value"] * metrics["nll"]["n"] / np.log(2)
    assert record["tokenizer"]["adds"]["front"]
    assert metrics["bits_per_byte"]["value"] == pytest.approx(bits / len(text.encode()), rel=1e-12)


def compared(scores: Scores) -> Scores:
    """With a made base, which finds every target a little likelier."""
    base = np.minimum(scores.logprob * 0.9, scores.top1_logprob)
    kld = np.abs(np.sin(scores.index)) * 0.1
    return replace(
        scores, against=Comparison(base, scores.top1 * 0 - 1, scores.top1_logprob, kld, kld)
    )


@pytest.mark.parametrize("protocol", ["score-mode", "hf-strided"])
def test_every_section_of_a_comparison_is_recomputed_from_the_parquet(protocol, request_):
    rules = preset(protocol).override(context_length=64, stride=24)
    result = run(replace(request_, protocol=rules), each(compared))
    scores, extras = read_columns(result.folder / SCORES)
    again = sections(scores, 64, extras)
    block = "llama_cpp_note" if protocol == "hf-strided" else "llama_cpp"
    assert set(again) == {"metrics", "intervals", "distribution", "breakdown", block}
    assert set(again["breakdown"]) == {"confidence", "position", "token_class"}
    record = read_record(result.folder)
    for name, section in again.items():
        assert section == result.record[name] == record[name]
    blocks = again["intervals"]["blocks"]
    assert (again["metrics"]["ppl_ratio"]["ci95"] is not None) == (blocks >= 8)
    worst = record["worst"]
    assert len(worst) == len({fact["index"] for fact in worst}) == 10
    assert all(fact["context"] and fact["base_top1_text"] == "<id -1>" for fact in worst)


def test_a_tokenizer_that_does_not_tell_its_bytes_is_said(request_, monkeypatch):
    def unknown(tokenizer):
        raise TokenizerError("made: a token's bytes of text are not known")

    monkeypatch.setattr("scoremode.runs.finishing.token_table", unknown)
    lines = []
    result = measure(request_, notify=lines.append)
    assert lines == ["no bits per byte, and no kinds of tokens: made: a token's bytes of text are "
                     "not known"]  # fmt: skip
    assert (
        set(result.record["metrics"]) == {"ppl", "nll"}
        and not read_columns(result.folder / SCORES)[1]
    )


def test_record_says_what_was_measured(request_, demo):
    record = measure(replace(request_, command=("scoremode", "ppl"))).record
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
    assert one.record["metrics"] == two.record["metrics"]


class Stop(Exception):
    pass


def interrupted_after(n):
    def tamper(parts):
        for i, part in enumerate(parts):
            if i == n:
                raise Stop
            yield part

    return tamper


def test_an_interrupted_run_goes_on_to_the_same_result(request_):
    whole = run(request_)
    with pytest.raises(Stop):
        run(request_, interrupted_after(2))
    resumed = run(replace(request_, resume=True))
    assert resumed.folder != whole.folder
    assert resumed.record["metrics"] == whole.record["metrics"]
    a, b = (r.folder / "scores.parquet" for r in (whole, resumed))
    assert a.read_bytes() == b.read_bytes()
    assert {p.name for p in resumed.folder.iterdir()} == {"record.json", "scores.parquet"}


def test_an_interruption_before_the_first_pass_leaves_nothing(request_):
    with pytest.raises(Stop):
        run(request_, interrupted_after(0))
    assert list(request_.output.iterdir()) == []


def test_resuming_a_finished_run_tells_its_result(request_):
    done = run(request_)
    lines = []
    again = measure(replace(request_, resume=True, output=done.folder), notify=lines.append)
    assert again.record == done.record and "finished" in lines[0]


def test_an_own_run_folder_needs_resume(request_):
    done = run(request_)
    with pytest.raises(RunFolderError, match="--resume"):
        run(replace(request_, output=done.folder))


def test_resuming_another_run_is_refused_and_the_field_named(request_):
    done = run(request_)
    other = replace(request_, protocol=preset("gptq").override(context_length=64))
    with pytest.raises(RunFolderError, match="plan"):
        run(replace(other, resume=True, output=done.folder))


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
    assert fresh.record["metrics"] == measure(request).record["metrics"]


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
    assert second.record["metrics"]["ppl"] != first.record["metrics"]["ppl"]
    with pytest.raises(RunFolderError, match=r"model\.safetensors has changed"):
        measure(replace(other, output=first.folder))


def test_weights_overwritten_during_a_run_are_noticed(request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)

    def overwrite(parts):
        for i, part in enumerate(parts):
            if i == 1:
                with (model / "model.safetensors").open("r+b") as file:
                    file.seek(-8, os.SEEK_END)
                    file.write(bytes(8))
            yield part

    with pytest.raises(CheckpointError, match="while it was in use"):
        run(replace(request_, model=str(model)), overwrite)


def test_an_interruption_after_the_end_keeps_the_result(request_, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "drop_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(request_)
    ((folder, record),) = find_runs(request_.output)
    assert record["status"] == "done" and (folder / "scores.parquet").exists()


def test_a_perplexity_beyond_floats_is_invalid(request_):
    def hopeless(scores):
        logprob = np.minimum(scores.logprob, scores.top1_logprob - 1) - 1000
        return replace(scores, logprob=logprob, top1=np.full_like(scores.top1, -1))

    with pytest.raises(InvalidMeasurement, match="ppl is inf"):
        run(request_, each(hopeless))


def test_an_unreadable_neighbour_does_not_stop_a_resume(request_):
    for name, text in (("x", "[]"), ("y", "{"), ("z", "{}")):
        (request_.output / name).mkdir(parents=True)
        (request_.output / name / "record.json").write_text(text)
    assert measure(replace(request_, resume=True)).record["status"] == "done"


def test_code_that_a_checkpoint_brings_is_named_and_not_run(request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)
    edit_config(model, auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    lines: list[str] = []
    record = measure(replace(request_, model=str(model)), notify=lines.append).record
    assert "auto_map" in lines[0] and "LlamaForCausalLM" in lines[0]
    assert record["engine"]["model_class"].endswith("LlamaForCausalLM")


def test_a_stated_quantization_that_is_not_there_is_refused(request_):
    with pytest.raises(UsageError, match="not quantized"):
        measure(replace(request_, quantization="compressed-tensors"))


def test_ids_beyond_the_vocabulary_are_refused(request_, demo, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    config = json.loads((model / "config.json").read_text())
    tokenizer["added_tokens"].append(
        tokenizer["added_tokens"][0] | {"id": config["vocab_size"], "content": "while"}
    )
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TokenizerError, match=f"token id {config['vocab_size']}"):
        measure(replace(request_, model=str(model)))


COMMAND = [sys.executable, "-m", "scoremode"]


@pytest.fixture(scope="module")
def command(demo) -> list[str]:
    """A run of a few seconds in many passes, all but its output folder."""
    arguments = (
        f"ppl {demo / 'model'} -f {demo / 'heldout.txt'} --protocol strided -c 128 --stride 32"
    )
    arguments += " --limit 400 --max-memory 8MB --batch-size 8 --device cpu --quiet -o"
    return [sys.executable, "-m", "scoremode", *arguments.split()]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory) -> Path:
    """The folder of an uninterrupted run of it."""
    runs = tmp_path_factory.mktemp("whole")
    subprocess.run([*command, str(runs)], check=True)
    ((folder, _),) = find_runs(runs)
    return folder


@pytest.mark.parametrize("parts_before_kill", [1, 4])
def test_kill_9_and_resume_gives_the_same_bits(parts_before_kill, command, whole, tmp_path):
    process = subprocess.Popen([*command, str(tmp_path)])
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*/parts/*.parquet"))) < parts_before_kill:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    ((folder, record),) = find_runs(tmp_path)
    assert record["status"] == "running"
    subprocess.run([*command, str(tmp_path), "--resume"], check=True)
    assert read_record(folder)["metrics"] == read_record(whole)["metrics"]
    a, b = (f / "scores.parquet" for f in (folder, whole))
    assert a.read_bytes() == b.read_bytes()


def test_a_full_disk_is_one_clear_line_and_leaves_nothing_half_written(command, tmp_path):
    # The largest file that the process may write stands in for the disk's end; Python ignores the
    # signal that comes with it, so the write itself fails.
    limited = f"ulimit -f 8; exec {' '.join(command)} {tmp_path / 'runs'}"
    result = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "cannot be written" in line and str(tmp_path) in line
    assert list(tmp_path.rglob("*.tmp")) == []
