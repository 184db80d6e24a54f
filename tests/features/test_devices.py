"""Several devices from the command line, on a CPU: one record, and what is left when a rank dies."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.programs import error_of
from support.waiting import HANG, wait_for, wait_for_ends

from scoremode.cli.devices import parsed
from scoremode.cli.main import main, parsed_command
from scoremode.demo.quantize import Variant, quantize_folder
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import find_runs, read_scores

Run = subprocess.Popen[str]
# On a free port: on the usual one, two of these tests at a time took each other's.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def flags(demo, tmp_path_factory) -> list[str]:
    """A dozen passes and more of one device: enough to be killed in."""
    text = tmp_path_factory.mktemp("text") / "text"
    text.write_text((demo / "heldout.txt").read_text(encoding="utf-8")[:4000], encoding="utf-8")
    rules = ["--protocol", "strided", "-c", "64", "--stride", "8", "--batch-size", "2"]
    return ["-f", str(text), *rules, "--device", "cpu", "--max-memory", "2MiB"]


@pytest.fixture(scope="module")
def short(flags) -> list[str]:
    return [*flags, "--limit", "24"]


@pytest.fixture(scope="module")
def packed(demo, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "model"
    quantize_folder(demo / "model", folder, Variant("W4A16-g32", 4, 32))
    return folder


@pytest.fixture(scope="module")
def alone(demo, flags, tmp_path_factory) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Record and columns of one device's run."""
    folder = tmp_path_factory.mktemp("alone")
    return here("ppl", str(demo / "model"), *flags, "-o", str(folder))


def here(*arguments: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A run of one device in this process."""
    assert main([*arguments, "--quiet"]) == 0
    return only_run(Path(arguments[arguments.index("-o") + 1]))


def only_run(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    ((path, record),) = find_runs(folder)
    assert record["status"] == "done"
    return record, read_scores(path).columns()


def start(*arguments: str, launcher: list[str] | None = None) -> Run:
    # One thread each, as a rank of two has on two cores: the number of threads may move a score.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *(launcher or []), "-m", "scoremode", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(run: Run, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of a run that ends with `code`, without the lines that say its stage."""
    out, err = run.communicate(timeout=HANG)
    assert run.returncode == code, err
    # Every 30 s one, where a busy machine takes so long.
    return out, re.sub(r"^scoremode: .*(?: \(\d+ s\)|, \d+% of .* tokens.*)\n", "", err, flags=re.M)


def children_of(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


def wait_for_parts(run: Run, folder: Path, count: int = 2) -> Path:
    """The run's folder, when so many passes are on disk."""
    wait_for(lambda: len(list(folder.glob("*/parts/*.parquet"))) >= count, run)
    return next(folder.glob("*/parts")).parent


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]), name


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")


@linux
def test_a_killed_rank_ends_the_run_and_any_number_goes_on(demo, flags, alone, tmp_path):
    run = start("ppl", str(demo / "model"), *flags, "--devices", "2", "-o", str(tmp_path))
    folder = wait_for_parts(run, tmp_path)
    (child,) = children_of(run.pid)
    os.kill(child, signal.SIGKILL)
    out, err = finish(run, 1)
    ending = "its process was ended by SIGKILL, as a system out of memory does"
    assert out == "" and err.splitlines()[-1] == f"scoremode: error: rank 1 (cpu): {ending}"
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "running" and list((folder / "parts").iterdir())
    # One device goes on by the longer passes of two.
    assert main(["ppl", str(demo / "model"), *flags, "-o", str(folder), "--resume", "--quiet"]) == 0
    record, columns = only_run(tmp_path)
    assert record["schedule"]["pass_windows"] == 2 * alone[0]["schedule"]["pass_windows"]
    assert_same(columns, alone[1])
    assert record["metrics"] == alone[0]["metrics"]


@linux
def test_a_killed_first_rank_leaves_no_process_and_two_go_on(demo, flags, alone, tmp_path):
    arguments = ["ppl", str(demo / "model"), *flags, "--devices", "2", "-o", str(tmp_path)]
    run = start(*arguments)
    folder = wait_for_parts(run, tmp_path)
    children = children_of(run.pid)
    assert len(children) == 1
    run.kill()
    run.communicate()
    wait_for_ends(children)
    again = [*arguments[:-1], str(folder), "--resume", "--json"]
    out, err = finish(start(*again))
    assert json.loads(out)["status"] == "done"
    assert "Traceback" not in err
    record, columns = only_run(tmp_path)
    assert_same(columns, alone[1])
    assert record["metrics"] == alone[0]["metrics"]
    devices = record["engine"]["devices"]
    assert [device["rank"] for device in devices] == [0, 1]
    assert record["engine"]["tokens"] == sum(device["tokens"] for device in devices)
    assert record["identity"] == alone[0]["identity"]


@linux
def test_ctrl_c_ends_all_without_a_word_of_the_others(demo, flags, tmp_path):
    run = start("ppl", str(demo / "model"), *flags, "--devices", "2", "-o", str(tmp_path))
    wait_for_parts(run, tmp_path)
    children = children_of(run.pid)
    run.send_signal(signal.SIGINT)
    out, err = finish(run, 130)
    kept = r"\d+ of 173 windows kept, run the same command again with --resume to go on"
    told, last = err.splitlines()
    assert out == "" and "no interval and no test" in told
    assert re.fullmatch(f"scoremode: interrupted: {kept}", last)
    wait_for_ends(children)


def test_torchrun_gives_the_same_and_one_record(demo, flags, alone, tmp_path):
    arguments = ["ppl", str(demo / "model"), *flags, "-o", str(tmp_path), "--json"]
    out, _ = finish(start(*arguments, launcher=TORCHRUN))
    assert json.loads(out)["status"] == "done"
    record, columns = only_run(tmp_path)
    assert_same(columns, alone[1])
    assert record["metrics"] == alone[0]["metrics"]
    assert len(record["engine"]["devices"]) == 2


@linux
def test_torchrun_with_a_killed_rank_names_it(demo, flags, tmp_path):
    run = start(*["ppl", str(demo / "model"), *flags, "-o", str(tmp_path)], launcher=TORCHRUN)
    folder = wait_for_parts(run, tmp_path)
    ranks = sorted(children_of(run.pid))
    os.kill(next(p for p in ranks if rank_of(p) == 1), signal.SIGKILL)
    _, err = finish(run, 1)
    assert "scoremode: error: rank 1 (cpu): its process was ended" in err
    wait_for_ends(ranks)
    assert json.loads((folder / "record.json").read_text())["status"] == "running"


def rank_of(process: int) -> int:
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return int(next(v for v in variables if v.startswith(b"RANK=")).partition(b"=")[2])


@pytest.mark.parametrize("base", ["stored", "model"])
def test_kld_is_the_same(base, demo, packed, short, tmp_path):
    model = str(demo / "model")
    reference, more = model, ["--full", "--noise-floor", "dtype"]
    if base == "stored":
        reference, more = str(tmp_path / "base"), []
        finish(start("reference", model, *short, "--devices", "2", "-o", reference, "--quiet"))
        assert main(["reference", model, *short, "-o", str(tmp_path / "base1"), "--quiet"]) == 0
        kept = [StoredReference(tmp_path / name) for name in ("base", "base1")]
        spans = [(0, kept[0].record.document["plan"]["scored"])]
        assert kept[0].states(spans).equal(kept[1].states(spans))
        kept[0].check_files()
    arguments = ["kld", str(packed), *short, "--reference", reference, *more]
    finish(start(*arguments, "--devices", "2", "-o", str(tmp_path / "two"), "--quiet"))
    record, columns = only_run(tmp_path / "two")
    wanted, same = here(*arguments, "-o", str(tmp_path / "one"))
    assert_same(columns, same)
    assert record["metrics"] == wanted["metrics"]
    if more:
        floors = [r["noise_floor"] | {"engine": None} for r in (record, wanted)]
        assert floors[0] == floors[1]


BAD = {
    "none": (["--devices", "0"], "--devices 0: must be at least 1"),
    "too many": (["--devices", "9999", "--device", "cpu"], "this machine has "),
    "one named": (["--devices", "2", "--device", "cuda:1"], "--device cuda:1 names one"),
    "vLLM": (["--devices", "2", "--engine", "vllm"], "--devices 2: is for --engine torch"),
}


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (0, "--devices 1000: this machine has no CUDA device; --device cpu shares out its cores"),
        (8, "--devices 1000: this machine has 8 CUDA devices"),
        (None, "--devices 1000: this machine has {cores} cores to share out"),
    ],
)
def test_no_more_processes_start_than_there_are_devices(
    gpus, message, demo, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("scoremode.engines.torch.ranks.places.Others", None)
    monkeypatch.setattr("scoremode.startup.warmup.count_gpus", lambda: gpus)
    model = str(demo / "model")
    assert main(["ppl", model, "--text", "a b", "--devices", "1000", "-o", str(tmp_path)]) == 2
    said = error_of(capsys.readouterr().err)
    assert said == f"scoremode: error: {message.format(cores=os.cpu_count())}"


@pytest.mark.parametrize("case", BAD)
def test_what_can_not_be_is_refused_before_a_process_starts(
    case, demo, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("scoremode.engines.torch.ranks.places.Others", None)
    arguments, message = BAD[case]
    model = str(demo / "model")
    assert main(["ppl", model, "--text", "a b", *arguments, "-o", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in error_of(err)
    assert not list(tmp_path.iterdir())


def test_an_error_of_all_ranks_is_said_once(tmp_path):
    nowhere = str(tmp_path / "no-model")
    run = start("ppl", nowhere, "--text", "a b", "--devices", "2", "--device", "cpu")
    _, err = finish(run, 1)
    assert error_of(err).startswith(f"scoremode: error: {nowhere}")


def test_other_commands_are_of_one_process(monkeypatch, capsys):
    torchrun = {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    assert main(["plan", "model", "--text", "a b"]) == 2
    assert "torchrun: this command runs in one process" in capsys.readouterr().err


SRUN = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize(
    ("line", "is_rank"),
    [
        (["ppl", "m"], True),
        (["kld", "m", "--reference", "b"], True),
        (["ppl", "m", "--shard", "1/2"], False),
        (["plan", "m"], False),
        (["show", "r"], False),
    ],
)
def test_tasks_of_slurm_are_ranks_where_they_measure_and_are_no_shards(line, is_rank, monkeypatch):
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    _, place = parsed(lambda: parsed_command(line))
    assert (place is not None and not place.is_first) == (place is not None) == is_rank
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    assert parsed(lambda: parsed_command(line))[1] is None


def test_a_task_of_slurm_says_itself_what_is_wrong_with_its_flags(monkeypatch, capsys):
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert main(["ppl", "m", "--typo"]) == 2
    assert "unrecognized arguments: --typo" in capsys.readouterr().err
