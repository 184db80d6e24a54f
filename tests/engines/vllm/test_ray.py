"""vLLM's workers as Ray's actors: the numbers of its own processes, and every end a clean one."""

import importlib.util
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from engines.vllm.harness import finish, processes_of
from engines.vllm.processes import TWO_ON_RAY, TWO_RANKS, processes

from scoremode.results.folders.store import find_runs, read_scores


@pytest.fixture
def on_ray(engines) -> dict[str, str]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install ray")
    return TWO_ON_RAY


@processes("float32, two ranks on Ray", "dense, two stages on Ray")
def test_ray_gives_the_bits_of_vllms_own_processes(process, ran):
    ours, other = ran(process), ran(process.removesuffix(" on Ray"))
    for name in ("logprob", "entropy", "top1", "top1_logprob"):
        assert np.array_equal(ours.column("windows", name), other.column("windows", name))
    for name in ("kld", "kld_reverse", "base_logprob", "jsd"):
        against = [answer.column("short against", name) for answer in (ours, other)]
        assert np.array_equal(*against) and np.isfinite(against[0]).all()
    assert ours.facts["describe"]["path"] == "pooler" and ours.facts["restored"]


@pytest.fixture
def prose(demo, tmp_path) -> Path:
    """Many passes, so that a run can be met in the middle."""
    (file := tmp_path / "long.txt").write_text((demo / "heldout.txt").read_text() * 6)
    return file


def started(engines, demo, prose, output, *more, backend="ray", **environment):
    engine = ("--engine", "vllm", "-tp", "2", "--engine-arg")
    more = (*engine, f"distributed_executor_backend={backend}", *more)
    text = ["-f", str(prose), "-c", "512", "--protocol", "disjoint"]
    model = str(demo / "model")
    return engines.start(
        ["-m", "scoremode", "ppl", model, *text, "-o", str(output), *more], **environment
    )


def actors_in_the_middle(program, output: Path) -> list[int]:
    """Ray's actors of the program, when its first pass is on disk and in its record."""
    while not (list(output.glob("*/parts/*.parquet")) and list(output.glob("*/record.json"))):
        assert program.process.poll() is None, program.output()
        time.sleep(0.01)
    found = processes_of(program)
    return [pid for pid, title in found.items() if title.startswith("ray::RayWorkerProc")]


@pytest.mark.large
def test_a_killed_actor_ends_the_run_in_one_line_and_it_goes_on(
    engines, demo, prose, tmp_path, on_ray
):
    output = tmp_path / "runs"
    program = started(engines, demo, prose, output, **on_ray)
    actors = actors_in_the_middle(program, output)
    assert len(actors) == 2
    os.kill(actors[0], signal.SIGKILL)
    finish(program)
    out, err = program.output()
    lines = [line for line in err.splitlines() if "scoremode: error" in line]
    assert program.process.returncode == 1 and out == "" and "Traceback" not in err
    assert len(lines) == 1 and "does not score: the worker of rank " in lines[0]
    assert lines[0].endswith("has died") and "Dumping" not in err
    ((folder, record),) = find_runs(output)
    assert record["status"] != "done"

    program = started(engines, demo, prose, output, "--resume", **on_ray)
    finish(program)
    assert program.process.returncode == 0, program.output()
    whole = tmp_path / "whole"
    finish(mp := started(engines, demo, prose, whole, backend="mp", **TWO_RANKS))
    assert mp.process.returncode == 0, mp.output()
    ((found, record),) = find_runs(output)
    ((other, _),) = find_runs(whole)
    assert found == folder and record["status"] == "done"
    columns = [read_scores(where).columns() for where in (found, other)]
    assert all(columns[0][n].tobytes() == columns[1][n].tobytes() for n in columns[0])


@pytest.mark.large
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_ends_ray_as_well(number, code, word, engines, demo, prose, tmp_path, on_ray):
    """SIGTERM's handler is the command's, though Ray has one of its own; `finish` sees leftovers."""
    program = started(engines, demo, prose, tmp_path / "runs", **on_ray)
    actors_in_the_middle(program, tmp_path / "runs")
    program.process.send_signal(number)
    finish(program)
    assert program.process.returncode == code
    assert f"scoremode: {word}" in program.output()[1]


@pytest.mark.large
def test_too_few_devices_are_refused_at_once(engines, demo, prose, tmp_path, on_ray):
    environment = on_ray | {"RAY_OVERRIDE_RESOURCES": '{"GPU": 1}'}
    program = started(engines, demo, prose, tmp_path / "runs", **environment)
    finish(program)
    assert program.process.returncode == 1
    assert "2 ranks need as many GPUs, and Ray finds 1 on this machine" in program.output()[1]


@pytest.mark.large
def test_vllms_cpu_platform_alone_does_not_run_on_ray(engines, demo, prose, tmp_path, on_ray):
    environment = {k: v for k, v in on_ray.items() if k != "PYTHONPATH"}
    program = started(engines, demo, prose, tmp_path / "runs", **environment)
    finish(program)
    assert program.process.returncode == 1
    assert "vLLM does not run on Ray on this platform" in program.output()[1]
