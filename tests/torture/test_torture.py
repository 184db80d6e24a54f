"""One cheap case of each campaign of `make torture`, and what the campaigns themselves see."""

import contextlib
import io
import shutil
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from torture import checkpoints, command, forged, world
from torture.command import Ended, Failure, check_ending
from torture.run import CAMPAIGNS, campaign

from scoremode.cli.main import main
from scoremode.results.folders.store import read_record, seal_of

# The number of a case that takes few processes, where the first one takes many.
CHEAP = {"links": 4}
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="finds processes in Linux's /proc"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> world.World:
    def here(words, folder):
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            return Ended(main([*words, "--quiet"]), out.getvalue(), err.getvalue(), tuple(words))

    return world.make_world(tmp_path_factory.mktemp("world"), ranks=False, run=here)


# The others start many processes; fuzz/, features/test_resume.py and lib/test_hub.py hold most.
@pytest.mark.parametrize("name", sorted(CAMPAIGNS.keys() - {"checkpoints", "kills", "disk", "hub"}))
def test_campaign(name, made):
    first = CHEAP.get(name, 0)
    tally = campaign([name], made, range(first, first + 1), 0, workers=1)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.counts[name] == CAMPAIGNS[name].attempts


def test_each_checkpoint_is_an_attempt_and_each_failure_counts(monkeypatch):
    def run(cases, seed, workers):
        return Counter(right=len(cases) - 2), ["case 1: failed: a", "case 2: disputed: b"], 1.0

    monkeypatch.setattr(checkpoints.fuzz, "run", run)
    tally = campaign(["checkpoints"], world.World(Path(), {}), range(2), 0, workers=1)
    assert tally.counts["checkpoints"] == 2 * checkpoints.CASES and len(tally.failures) == 4
    assert "checkpoints seed 0 case 1: case 2: disputed: b" in tally.failures
    assert str(tally).endswith(f"{2 * checkpoints.CASES - 4} survived, 4 failed")


def test_a_forged_record_is_sealed_and_another(made, tmp_path):
    true = made.commands["kld"].run
    folder = made.copied("kld", tmp_path / "run")
    for case in range(20):
        shutil.copy(true / "record.json", folder)
        forged.forge(Random(case), folder)
        record = read_record(folder)
        assert record["sha256"] == seal_of(record) != read_record(true)["sha256"]


def test_another_result_is_seen(made, tmp_path):
    true = made.commands["reference"]
    shutil.copytree(true.folder, tmp_path / "base")
    assert world.result_of(tmp_path / "base") == true.result
    file = tmp_path / "base" / "tokens.i32"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    assert world.result_of(tmp_path / "base") != true.result
    (tmp_path / "base" / "parts").mkdir()
    with pytest.raises(Failure, match="parts"):
        world.result_of(tmp_path / "base")


@pytest.mark.parametrize(
    ("code", "err"),
    [
        (0, "Traceback (most recent call last):\n"),
        (1, "scoremode: error: one\nscoremode: error: two\n"),
        (1, ""),
        (0, "FutureWarning: something\n"),
        (139, ""),
    ],
)
def test_a_wrong_ending_is_seen(code, err):
    with pytest.raises(Failure):
        check_ending(Ended(code, "", err, ("ppl",)), 0, 1)


def test_right_endings_are(tmp_path):
    check_ending(Ended(0, "", "", ("ppl",)), 0, 1)
    check_ending(Ended(1, "", "scoremode: error: no\n", ("ppl",)), 0, 1)


def test_a_hang_and_a_process_left_behind_are_seen(monkeypatch, tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(command, "LIMIT", 1.0)
    with pytest.raises(Failure, match="still runs"):
        command.run([], tmp_path, before=sleep)
    leave = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdout=-3, stderr=-3)"
    monkeypatch.setattr(command, "LIMIT", 30.0)
    monkeypatch.setattr(command, "LEFT", 1.0)
    with pytest.raises(Failure, match="left behind"):
        command.run([], tmp_path, before=[sys.executable, "-c", leave, *sleep])


def test_a_case_is_made_by_its_number_alone(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / "b").write_bytes(bytes(100))
    from torture.damage import damage_a_file

    first = damage_a_file(Random("x"), tmp_path)
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(100))
    assert damage_a_file(Random("x"), tmp_path) == first
