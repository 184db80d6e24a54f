"""A second run by another interpreter: the job that goes there is the job that is done."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.run_requests import request

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_local
from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import CheckpointError, RunFolderError
from scoremode.lib.interpreters import Interpreter
from scoremode.runs.planning import plan_text
from scoremode.runs.rescore import elsewhere
from scoremode.runs.rescore.elsewhere import read_job, rescore_elsewhere, write_job
from scoremode.runs.rescore.rescore import Job, rescore_apart
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset

PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def job(base, text, tmp_path_factory) -> Job:
    ask = request(base, text[:1000], tmp_path_factory.mktemp("job"))
    planned = plan_text(ask.corpus, ask.protocol, model=str(base))
    fingerprint = open_checkpoint(base).fingerprint
    return Job(resolve_local(base), fingerprint, ask.options, planned.plan, planned.vocabulary)


def test_scores_and_description_are_those_of_a_run_here(job):
    said: list[Sequence[Any]] = []
    found = rescore_elsewhere("other", job, Interpreter.own(), PATHS, receive=said.append)
    here = rescore_apart("here", job)
    assert found.scores.columns().keys() == here.scores.columns().keys()
    for name, column in here.scores.columns().items():
        assert np.array_equal(found.scores.columns()[name], column), name
    changing = ("seconds", "peak_bytes")
    assert {k: v for k, v in found.engine.items() if k not in changing} == {
        k: v for k, v in here.engine.items() if k not in changing
    }
    assert [value for kind, value in said if kind == "stage"] == ["import", "engine", "score"]


def test_an_error_there_is_an_error_here(job):
    changed = replace(job, fingerprint="another")
    with pytest.raises(CheckpointError, match=r"^other: .*has changed since it was opened"):
        rescore_elsewhere("other", changed, Interpreter.own(), PATHS)


def test_scores_that_are_not_those_it_names_are_refused(job, monkeypatch):
    """As a process of the same user, or a disk, might change them."""

    def answered(label, interpreter, work, name, **_):
        told = elsewhere.answer_job(lambda _: None, name)
        file = Path(name, "scores.parquet")
        file.write_bytes(file.read_bytes().replace(b"logprob", b"logprop"))
        return told

    monkeypatch.setattr(elsewhere, "run_elsewhere", answered)
    with pytest.raises(RunFolderError, match="is damaged or another's"):
        rescore_elsewhere("other", job, Interpreter.own())


@pytest.mark.parametrize(
    "options",
    [
        TorchOptions(dtype="float32", device="cpu", batch_windows=3, attention="eager"),
        TorchOptions(kv_cache=parse_kv_cache("k=int8,v=int4-g32")),
        TorchOptions(kv_cache=replace(parse_kv_cache("fp8_e4m3"), scales="scales.safetensors")),
        VllmOptions(dtype="bfloat16", arguments={"max_num_seqs": 1, "hf_overrides": {"a": [1]}}),
    ],
)
def test_a_job_is_read_as_it_was_written(options, job, tmp_path):
    written = replace(job, options=options, reference=tmp_path, vocabulary=None)
    write_job(tmp_path, written)
    read = read_job(tmp_path)
    assert read.plan.sha256 == written.plan.sha256
    assert replace(read, plan=written.plan) == written


def test_a_plan_of_conversations_keeps_what_counts(job, tmp_path):
    rng = np.random.default_rng(3)
    start = np.array([0, 7, 20])
    plan = Plan(
        preset("chat").resolve(64),
        rng.integers(0, 99, 40, np.int32),
        start,
        start + np.array([7, 13, 20]),
        np.array([1, 2, 3]),
        window_bos=5,
        stream_bos=6,
        drawn_weights=np.array([1.0, 0.5, 0.25]),
        counted=np.arange(40) % 3 > 0,
        conversation=np.array([0, 1, 1], np.int32),
    )
    write_job(tmp_path, replace(job, plan=plan))
    read = read_job(tmp_path).plan
    assert read.sha256 == plan.sha256
    for name, value in vars(plan).items():
        if name in Plan.__dataclass_fields__:
            assert np.array_equal(getattr(read, name), value), name
