"""One engine over a whole plan, as its process runs it."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
from support.run_requests import request

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_local
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.results.scores import check
from scoremode.runs.planning import plan_text
from scoremode.runs.rescore.rescore import Job, run_job


def job(model, text, tmp_path) -> Job:
    ask = request(model, text[:1000], tmp_path)
    planned = plan_text(ask.corpus, ask.protocol, model=str(model))
    checkpoint = open_checkpoint(model)
    files, fingerprint = resolve_local(model), checkpoint.fingerprint
    return Job(files, fingerprint, ask.options, planned.plan, planned.vocabulary)


def test_all_windows_come_back_with_what_made_them(base, kept, text, tmp_path):
    asked, sent = job(base, text, tmp_path), []
    run = run_job(sent.append, asked)
    plan = asked.plan
    check(run.scores, plan, range(len(plan)))
    assert run.scores.against is None and run.engine["dtype"] == "bfloat16"
    assert [value for kind, value in sent if kind == "stage"] == ["import", "engine", "score"]
    done = [value for kind, value in sent if kind == "progress"]
    assert done[0] == 0 and sum(done) == pytest.approx(plan.lengths.sum())


def test_a_model_that_has_changed_is_refused(base, text, tmp_path):
    model = shutil.copytree(base, tmp_path / "model")
    asked = job(model, text, tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"own": 1}))
    with pytest.raises(CheckpointError, match="has changed since it was opened"):
        run_job(nothing, asked)


def test_a_token_beyond_the_softmax_is_refused(base, text, tmp_path):
    asked = job(base, text, tmp_path)
    tokens = asked.plan.tokens
    tokens.setflags(write=True)
    tokens[5] = np.int32(1_000_000)
    with pytest.raises(TokenizerError, match="the text has token id 1000000, and the softmax runs"):
        run_job(nothing, asked)


def nothing(message: Any) -> None:
    """Takes what a process says."""
