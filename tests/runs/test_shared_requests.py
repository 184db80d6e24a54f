"""Whole runs of requests that share their beginnings: killed and gone on with, in shards, by two
devices, kept and compared with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.run_requests import request

from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.options import TorchOptions
from scoremode.reference.replay import replay
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import find_runs, read_record, read_scores
from scoremode.results.shards import Shard
from scoremode.results.shards.merge import merge
from scoremode.runs.check.check import Rerun, check
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.task_requests import TASKS, TextRequest, request_corpus

OPTIONS = TorchOptions(device="cpu", dtype="float32")
SHARED = "shared in rows of 128 tokens"


class Stop(BaseException):
    """As a kill would, leaves what is on disk."""


@pytest.fixture(autouse=True)
def short_passes(monkeypatch):
    """Several passes of several micro-batches."""
    own = TorchEngine.schedule

    def schedule(self, plan):
        assert own(self, plan).row_tokens is not None
        return replace(own(self, plan), row_tokens=128, batch_tokens=256, pass_tokens=512)

    monkeypatch.setattr(TorchEngine, "schedule", schedule)


@pytest.fixture(scope="module")
def corpus(demo):
    """Questions behind one shot, with choices of a word, as lm-evaluation-harness asks them."""
    words = (demo / "heldout.txt").read_text(encoding="utf-8").split()
    shot, requests = " ".join(words[:12]), []
    for question in range(40):
        own = words[12 + 8 * question :]
        context = f"{shot}\n\n{' '.join(own[:6])}"
        requests += [
            TextRequest("made", question, place, context, f" {word}")
            for place, word in enumerate(dict.fromkeys(own[6:10]))
        ]
    return request_corpus(requests)


@pytest.fixture
def ask(demo, corpus, tmp_path) -> Callable[..., Request]:
    def ask(name: str, **more: Any) -> Request:
        own = {"corpus": corpus, "protocol": TASKS, "options": OPTIONS}
        return request(demo / "model", "", tmp_path / name, **own, **more)

    return ask


@pytest.fixture
def whole(ask) -> Path:
    folder = measure(ask("whole")).folder
    record = read_record(folder)
    assert record["schedule"]["row_tokens"] == 128
    assert record["engine"]["prefixes"] == SHARED
    return folder


def logprobs(folder: Path) -> list[float]:
    return read_scores(folder).logprob.tolist()


def test_a_killed_run_goes_on_to_the_same_bits(ask, whole):
    again = ask("killed")
    with pytest.MonkeyPatch.context() as patched:
        own, done = TorchEngine._launch, []

        def stopping(self, work):
            done.append(1)
            if len(done) > 1:
                raise Stop
            return own(self, work)

        patched.setattr(TorchEngine, "_launch", stopping)
        with pytest.raises(Stop):
            measure(again)
    ((folder, _),) = find_runs(again.output)
    assert len(read_record(folder)["parts"]) == 1
    result = measure(replace(again, resume=True))
    assert result.folder == folder and logprobs(folder) == logprobs(whole)
    assert read_record(folder)["engine"]["prefixes"] == SHARED


def test_shards_merge_to_the_same_bits(ask, whole, tmp_path):
    shards = [measure(ask("shards", shard=Shard(i, 2))).folder for i in (1, 2)]
    record = merge(shards, tmp_path / "merged")
    assert logprobs(tmp_path / "merged") == logprobs(whole)
    assert record.schedule.row_tokens == 128


@pytest.mark.parametrize("beside", [False, True], ids=["kept", "beside"])
def test_a_model_against_itself_is_exactly_zero(ask, whole, tmp_path, demo, beside):
    base = str(demo / "model")
    if not beside:
        kept = measure(ask("reference", keep="stored")).folder
        assert replay(StoredReference(kept), torch.device("cpu")).bitwise
        base = str(kept)
    folder = measure(ask("kld", reference=base)).folder
    scores = read_scores(folder)
    assert scores.against is not None and not scores.against.kld.any()
    assert logprobs(folder) == logprobs(whole)
    said = read_record(folder)["reference"].get("engine", {}).get("prefixes")
    assert said == (SHARED if beside else said)


def test_a_second_run_has_the_same_bits(ask, whole, demo):
    result = check([whole], rerun=Rerun(str(demo / "model"), share=0.5))
    again = result["runs"][0]["second_run"]
    assert again["same_bits"] and len(again["windows"]) > 1
