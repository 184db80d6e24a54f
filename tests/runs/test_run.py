"""Runs from their plan on: what is refused, what is written, what an interruption leaves behind."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.tampered_runs import Stop, copy_model, each, interrupted_after, run

from scoremode.errors import (
    CheckpointError,
    InvalidMeasurement,
    RunFolderError,
    TokenizerError,
)
from scoremode.results.folders.finished import open_run
from scoremode.results.folders.store import (
    RunFolder,
    find_runs,
)
from scoremode.results.scores import Scores, concatenate
from scoremode.runs.measure import measure
from scoremode.text.protocol import preset
from scoremode.text.tokenizer import load_tokenizer


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


@pytest.mark.parametrize("bug", SEED_BUGS)
def test_the_seeds_bugs_are_refused_not_averaged(bug, request_):
    with pytest.raises(InvalidMeasurement):
        run(request_, SEED_BUGS[bug])
    ((folder, record),) = find_runs(request_.output)
    assert record["status"] == "invalid" and record["reason"]
    assert "metrics" not in record
    assert {p.name for p in folder.iterdir()} == {"record.json"}


def test_a_non_finite_score_names_window_and_position(request_):
    def spoil(scores):
        logprob = scores.logprob.copy()
        logprob[70] = np.nan
        return replace(scores, logprob=logprob)

    with pytest.raises(
        InvalidMeasurement, match=r"window 1, position 8\b.* all stored weights are finite"
    ) as error:
        run(request_, each(spoil))
    assert error.value.exit_code == 3


def test_an_interrupted_run_goes_on_to_the_same_result(request_):
    whole = run(request_)
    with pytest.raises(Stop):
        run(request_, interrupted_after(2))
    resumed = run(replace(request_, resume=True))
    assert resumed.folder != whole.folder
    assert resumed.record.document["metrics"] == whole.record.document["metrics"]
    a, b = (r.folder / "scores.parquet" for r in (whole, resumed))
    assert a.read_bytes() == b.read_bytes()
    assert {p.name for p in resumed.folder.iterdir()} == {"record.json", "scores.parquet"}


def test_texts_of_tokens_are_the_same_bytes_after_an_interruption(request_):
    plain = run(request_)
    asked = replace(request_, token_text=True, output=request_.output / "texts")
    whole = run(asked)
    with pytest.raises(Stop):
        run(asked, interrupted_after(2))
    resumed = run(replace(asked, resume=True))
    files = [r.folder / "scores.parquet" for r in (plain, whole, resumed)]
    assert files[1].read_bytes() == files[2].read_bytes() != files[0].read_bytes()
    assert (
        resumed.record.document["scores"]["token_text"] is True
        and "token_text" not in plain.record.document["scores"]
    )
    assert whole.record.document["metrics"] == plain.record.document["metrics"]
    without, table = pq.read_table(files[0]), pq.read_table(files[2])
    assert table.drop_columns("token_text") == without
    tokens = load_tokenizer(Path(request_.model)).backend
    spelled = {i: tokens.decode([i]) for i in table["target"].to_pylist()}
    pairs = zip(table["target"].to_pylist(), table["token_text"].to_pylist(), strict=True)
    assert all(text == spelled[i] or "<0x" in text for i, text in pairs)
    found = open_run(resumed.folder)
    assert found.record.document["metrics"]["ppl"] == plain.record.document["metrics"]["ppl"]


def test_texts_are_another_runs(request_):
    """A killed run without them is not gone on with."""
    with pytest.raises(Stop):
        run(request_, interrupted_after(1))
    (folder,) = request_.output.iterdir()
    with pytest.raises(RunFolderError, match="token_text"):
        run(replace(request_, resume=True, token_text=True, output=folder))


def test_an_interruption_before_the_first_pass_leaves_nothing(request_):
    with pytest.raises(Stop):
        run(request_, interrupted_after(0))
    assert list(request_.output.iterdir()) == []


def test_an_own_run_folder_needs_resume(request_):
    done = run(request_)
    with pytest.raises(RunFolderError, match="--resume"):
        run(replace(request_, output=done.folder))


def test_resuming_another_run_is_refused_and_the_field_named(request_):
    done = run(request_)
    other = replace(request_, protocol=preset("gptq").override(context_length=64))
    with pytest.raises(RunFolderError, match="plan"):
        run(replace(other, resume=True, output=done.folder))


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
