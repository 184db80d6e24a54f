"""The state of runs from their folders, at every point that a run passes through."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.run_folders import NOISE, scores_of, write_run
from support.run_requests import request
from support.shard_runs import asked
from support.shard_runs import run as run_shard
from support.tampered_runs import Stop as Interrupted
from support.tampered_runs import interrupted_after

from scoremode.engines.torch.engine import TorchEngine
from scoremode.errors import RunFolderError
from scoremode.results.folders.status import StatusReader, found_runs, pace
from scoremode.results.folders.store import RunFolder, read_columns, read_record
from scoremode.results.scores import concatenate
from scoremode.runs.measure import measure


class Stop(BaseException):
    """As a kill would, leaves what is on disk."""


@pytest.fixture(scope="module")
def killed(demo, tmp_path_factory) -> Path:
    """A run of several passes, killed behind the third."""
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:6000]
    output = tmp_path_factory.mktemp("runs")
    asked = request(
        demo / "model", text, output, command=("scoremode", "ppl", "a model", "-o", "x")
    )
    with pytest.MonkeyPatch.context() as patched:
        own, count = TorchEngine._score_states, []

        def stopping(self, *arguments):
            count.append(1)
            if len(count) > 5:
                raise Stop
            return own(self, *arguments)

        patched.setattr(TorchEngine, "_score_states", stopping)
        with pytest.raises(Stop):
            measure(replace(asked, options=replace(asked.options, max_memory=1_000_000)))
    (folder,) = output.iterdir()
    assert len(read_record(folder)["parts"]) >= 2
    return folder


def snapshot(folder: Path) -> dict:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_size)
        for p in folder.rglob("*")
    }


def test_a_killed_run_says_how_far_it_is_and_how_it_goes_on(killed):
    before = snapshot(killed)
    record, found = read_record(killed), StatusReader().status(killed)
    assert found["state"] == "killed" and found["windows_per_second"] > 0
    assert found["seconds_left"] is None
    assert found["resume"] == "scoremode ppl 'a model' -o x --resume"
    parts = sorted((killed / "parts").glob("*.parquet"))[: len(record["parts"])]
    scores = concatenate([read_columns(part)[0] for part in parts])
    assert found["windows"] == len(np.unique(scores.window)) < found["of"]
    assert found["of"] == record["plan"]["windows"]
    assert found["estimates"]["ppl"]["value"] == pytest.approx(np.exp(scores.nll.mean()), rel=1e-12)
    assert snapshot(killed) == before


def test_a_run_that_a_process_works_on_is_running_with_its_time_left(killed, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(killed, copy)
    times = [1000.0 + 10 * i for i in range(len(read_record(copy)["parts"]))]
    for i, time in enumerate(times):
        os.utime(copy / "parts" / f"{i:05}.parquet", (time, time))
    held = RunFolder.open(copy)
    reader = StatusReader(now=lambda: times[-1] + 4)
    try:
        found = reader.status(copy)
    finally:
        held.close()
    assert found["state"] == "running" and found["resume"] is None
    left = (found["of"] - found["windows"]) / found["windows_per_second"] - 4
    assert found["seconds_left"] == pytest.approx(left, abs=0.06)
    assert StatusReader().status(copy)["state"] == "killed"


def test_finished_and_invalid_runs(tmp_path):
    done = write_run(tmp_path / "done", scores_of(NOISE["W4A16"]))
    record = read_record(done)
    found = StatusReader().status(done)
    assert found["state"] == "done" and found["windows"] == found["of"] == record["plan"]["windows"]
    for name in ("ppl", "ppl_ratio", "kld"):
        assert found["estimates"][name]["value"] == record["metrics"][name]["value"]
        assert list(found["estimates"][name]["ci95"]) == list(record["metrics"][name]["ci95"])
    invalid = write_run(
        tmp_path / "invalid", scores_of(0.1), changes={"status": "invalid", "reason": "not finite"}
    )
    found = StatusReader().status(invalid)
    assert (found["state"], found["problem"]) == ("invalid", "not finite")


@pytest.mark.parametrize(
    "how", ["record cut", "part changed", "part gone", "sealed otherwise", "edited"]
)
def test_what_is_damaged_is_named_and_not_believed(killed, how, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(killed, copy)
    record, part = copy / "record.json", copy / "parts" / "00001.parquet"
    if how == "record cut":
        record.write_text(record.read_text()[:200])
    elif how == "part changed":
        part.write_bytes(part.read_bytes()[:-9] + b"xxxxxxxxx")
    elif how == "part gone":
        part.unlink()
    elif how == "sealed otherwise":
        record.write_text(record.read_text().replace('"windows": ', '"windows": 1', 1))
    else:
        copy = write_run(tmp_path / "done", scores_of(0.3), changes={"metrics.kld.value": 0.5})
    found = StatusReader().status(copy)
    assert found["state"] == "damaged" and str(copy) in found["problem"]


def test_a_run_that_ends_while_it_is_read_is_read_again(killed, tmp_path, monkeypatch):
    """Its parts are gone by the time they are read: the record is another one by then."""
    copy = tmp_path / "run"
    shutil.copytree(killed, copy)
    done = write_run(tmp_path / "done", scores_of(0.3))
    own, reader = StatusReader._part, StatusReader()

    def ends(self, path, sha256, rows):
        monkeypatch.setattr(StatusReader, "_part", own)
        shutil.rmtree(copy)
        shutil.copytree(done, copy)
        return own(self, path, sha256, rows)

    monkeypatch.setattr(StatusReader, "_part", ends)
    assert reader.status(copy)["state"] == "done"


def test_the_pace_is_of_the_last_stretch_without_a_pause():
    assert pace([], [], 0.0) is None
    assert pace([110.0], [20], 100.0) == 2 and pace([110.0], [20], None) is None
    assert pace([110.0, 120.0, 130.0], [20, 20, 20], 100.0) == 2
    # Killed for an hour, and then at another pace.
    times = [110.0, 120.0, 130.0, 3730.0, 3735.0, 3740.0, 3745.0]
    assert pace(times, [20] * 7, 100.0) == pytest.approx(4)
    # The first parts waited for hashes.
    assert pace([140.0, 140.1], [20, 20], 100.0) == pytest.approx(40 / 40.1)


def test_runs_are_found_where_they_lie(killed, tmp_path):
    assert found_runs(killed) == [killed] and found_runs(killed.parent) == [killed]
    deep = tmp_path / "sweep" / "runs" / "one"
    deep.parent.mkdir(parents=True)
    shutil.copytree(killed, deep)
    assert found_runs(tmp_path / "sweep") == [deep]
    for nothing in (tmp_path / "none", tmp_path / "sweep" / "empty"):
        (tmp_path / "sweep" / "empty").mkdir(exist_ok=True)
        with pytest.raises(RunFolderError, match=r"is not there|is no run"):
            found_runs(nothing)


def test_a_shard_is_of_its_own_windows_and_estimates_nothing(demo, tmp_path):
    request = asked(demo, tmp_path / "runs")
    done = run_shard(request, shard="2/3").folder
    found = StatusReader().status(done)
    assert found["state"] == "shard" and found["shard"] == "2/3"
    assert (found["windows"], found["of"]) == (16, 16) and "estimates" not in found
    with pytest.raises(Interrupted):
        run_shard(request, shard="3/3", output=tmp_path / "k", tamper=interrupted_after(2))
    (folder,) = (tmp_path / "k").iterdir()
    found = StatusReader().status(folder)
    record = read_record(folder)
    begin, end = record["shard"]["windows"]
    assert (found["state"], found["shard"]) == ("killed", "3/3") and found["estimates"] == {}
    assert (found["windows"], found["of"]) == (16, end - begin)
