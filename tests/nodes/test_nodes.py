"""Runs over several machines, which are network namespaces of this one: the same bits as one process,
and what is left when a machine or the network between is gone.

Those without the marker `large` are in `make test-all`; `make test-nodes` has all of them.
"""

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from nodes.hosts import Host, Run, hosts, reason
from support.waiting import HANG, wait_for

from scoremode.cli.main import main
from scoremode.demo.quantize import Variant, quantize_folder
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import find_runs, read_scores

large = pytest.mark.large

RULES = ["--protocol", "strided", "-c", "64", "--stride", "8", "--batch-size", "2"]
FLAGS = [*RULES, "--device", "cpu", "--max-memory", "2MiB"]
KILLED = "its process was ended, as a system out of memory does"
SILENT = "its machine does not answer: it is down, or the network between is"


@pytest.fixture(scope="module")
def folder(demo, tmp_path_factory) -> Path:
    """Two machines' folders `1` and `2`, each with the model, a quantized one and the text."""
    at = tmp_path_factory.mktemp("machines")
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:18_000]
    for number in (1, 2):
        own = at / str(number)
        shutil.copytree(demo / "model", own / "model")
        quantize_folder(demo / "model", own / "packed", Variant("W4A16-g32", 4, 32))
        (own / "text").write_text(text, encoding="utf-8")
    return at


@pytest.fixture
def two() -> Iterator[list[Host]]:
    if why := reason():
        pytest.skip(why)
    with hosts(2) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory) -> Path:
    """The folder of one process's run."""
    return here(folder, tmp_path_factory.mktemp("alone"), "ppl", "model")


def here(folder: Path, output: Path, *command: str, more: Sequence[str] = ()) -> Path:
    arguments = line(command, folder / "1", output, more)
    assert main([*arguments, "--quiet"]) == 0
    return output


def line(command: Sequence[str], own: Path, output: Path, more: Sequence[str] = ()) -> list[str]:
    """A command line for a machine whose folder is `own`; words in it that begin with @ lie there."""
    name, model, *rest = command
    rest = [str(own / word[1:]) if word.startswith("@") else word for word in rest]
    text = ["-f", str(own / "text")]
    return [name, str(own / model), *rest, *text, *FLAGS, *more, "-o", str(output)]


def start(
    machines: list[Host],
    launcher: str,
    folder: Path,
    output: Path,
    *command: str,
    more: Sequence[str] = (),
    here: int = 1,
    hidden: Path | None = None,
) -> list[Run]:
    """The command on all machines, by a launcher each, or by what `srun` sets, a task each.

    `hidden`: a folder that the second one does not see.
    """
    runs, first = [], machines[0].address
    for node, machine in enumerate(machines):
        arguments = line(command, folder / str(node + 1), output, more)
        variables: dict[str, str] = {}
        if launcher == "srun":
            assert here == 1
            size = str(len(machines))
            variables |= {"SLURM_STEP_NUM_TASKS": size, "SLURM_PROCID": str(node)}
            variables |= {"SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
            variables |= {"SLURM_STEP_TASKS_PER_NODE": f"1(x{size})", "SLURM_JOB_ID": "7"}
            variables |= {"SLURM_STEP_NODELIST": f"{first},x", "SLURM_STEP_ID": "0"}
            prefix = ["-m", "scoremode"]
        else:
            prefix = ["-m", "torch.distributed.run", "--nnodes", str(len(machines))]
            prefix += ["--node-rank", str(node), "--nproc-per-node", str(here)]
            prefix += ["--master-addr", first, "--master-port", "29500", "-m", "scoremode"]
        runs.append(machine.start([*prefix, *arguments], variables, hidden if node else None))
    return runs


def finish(run: Run, seconds: float = HANG) -> tuple[int, str, list[str]]:
    """Exit code, stdout, and scoremode's own lines of stderr but those that say its stage."""
    out, err = run.communicate(timeout=seconds)
    lines = [text for text in err.split("\n") if text.startswith("scoremode: error: ")]
    assert "Traceback" not in re.sub(r"(?s)Traceback.*ChildFailedError", "", err), err
    return run.returncode, out, lines


def wait_for_parts(run: Run, folder: Path, count: int = 2) -> None:
    wait_for(lambda: len(list(folder.glob("*/parts/*.parquet"))) >= count, run)


def assert_same(output: Path, alone: Path) -> dict:
    """Checks that two folders have a run of the same scores each; the first one's record."""
    found = []
    for folder in (output, alone):
        ((path, record),) = find_runs(folder)
        assert record["status"] == "done"
        found.append((record, read_scores(path).columns()))
    (record, columns), (wanted, same) = found
    assert columns.keys() == same.keys()
    for name in columns:
        assert columns[name].dtype == same[name].dtype
        assert np.array_equal(columns[name], same[name]), name
    assert record["metrics"] == wanted["metrics"]
    assert record["identity"] == wanted["identity"]
    return record


def test_srun_gives_the_same_scores_and_one_record(two, folder, alone, tmp_path):
    runs = start(two, "srun", folder, tmp_path, "ppl", "model", more=["--json"])
    (code, out, lines), others = finish(runs[0]), finish(runs[1])
    assert (code, lines) == (0, []) and others == (0, "", [])
    assert json.loads(out)["status"] == "done"
    record = assert_same(tmp_path, alone)
    devices = record["engine"]["devices"]
    assert [device["host"] for device in devices] == [machine.name for machine in two]
    assert all(device["tokens"] for device in devices)


def test_another_file_on_a_machine_is_named_and_nothing_is_left(two, folder, tmp_path):
    """The same headers, other weights: as another quantization under the same name is."""
    other = tmp_path / "machines"
    shutil.copytree(folder, other)
    file = other / "2" / "packed" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    output = tmp_path / "runs"
    runs = start(two, "srun", other, output, "ppl", "packed")
    code, out, (said,) = finish(runs[0])
    assert (code, out) == (1, "")
    model = other / "1" / "packed"
    name = f"rank 1 (cpu on {two[1].name}) has another model.safetensors"
    assert said.startswith(f"scoremode: error: {model}: {name} (sha256 ")
    assert finish(runs[1]) == (1, "", [])
    assert not list(output.glob("*"))


@large
def test_torchrun_with_two_ranks_a_machine_gives_the_same(two, folder, alone, tmp_path):
    runs = start(two, "torchrun", folder, tmp_path, "ppl", "model", more=["--json"], here=2)
    code, out, lines = finish(runs[0])
    assert (code, lines) == (0, []) and json.loads(out)["status"] == "done"
    assert finish(runs[1]) == (0, "", [])
    devices = assert_same(tmp_path, alone)["engine"]["devices"]
    assert [device["host"] for device in devices] == [two[0].name] * 2 + [two[1].name] * 2


@large
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
@pytest.mark.parametrize("base", ["stored", "model"])
def test_kld_is_the_same(base, launcher, two, folder, tmp_path):
    own, more = tmp_path / "machines", ["--limit", "60"]
    shutil.copytree(folder, own)
    command = ["kld", "packed", "--reference", "@model", "--full", "--noise-floor", "dtype"]
    if base == "stored":
        here(own, own / "1" / "ref", "reference", "model", more=more)
        shutil.copytree(own / "1" / "ref", own / "2" / "ref")
        command = ["kld", "packed", "--reference", "@ref"]
    runs = start(two, launcher, own, tmp_path / "two", *command, more=[*more, "--quiet"])
    assert [finish(run) for run in runs] == [(0, "", [])] * 2
    record = assert_same(tmp_path / "two", here(own, tmp_path / "one", *command, more=more))
    assert base == "stored" or record["noise_floor"]["resolves"]


@large
def test_another_base_on_a_machine_is_named(two, folder, tmp_path):
    own, more = tmp_path / "machines", ["--limit", "60"]
    shutil.copytree(folder, own)
    here(own, own / "1" / "ref", "reference", "model", more=more)
    runs = start(
        two, "srun", own, tmp_path / "two", "kld", "packed", "--reference", "@ref", more=more
    )
    code, _, (said,) = finish(runs[0])
    where = f"rank 1 (cpu on {two[1].name})"
    assert code == 1 and said.startswith(f"scoremode: error: {where}: {own / '2' / 'ref'}")
    file = next((own / "1" / "ref" / "states").iterdir())
    shutil.copytree(own / "1" / "ref", own / "2" / "ref")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (own / "2" / "ref" / "states" / file.name).write_bytes(data)
    runs = start(
        two, "srun", own, tmp_path / "two", "kld", "packed", "--reference", "@ref", more=more
    )
    code, _, (said,) = finish(runs[0])
    assert code == 1 and where in said and str(own / "2" / "ref" / "states" / file.name) in said


@large
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_reference_is_written_by_all(launcher, two, folder, tmp_path):
    more = ["--limit", "60", "--quiet"]
    runs = start(two, launcher, folder, tmp_path / "ref", "reference", "model", more=more)
    assert [finish(run) for run in runs] == [(0, "", [])] * 2
    here(folder, tmp_path / "ref1", "reference", "model", more=more)
    kept = [StoredReference(tmp_path / name) for name in ("ref", "ref1")]
    spans = [(0, kept[0].record.document["plan"]["scored"])]
    assert kept[0].states(spans).equal(kept[1].states(spans))
    kept[0].check_files()
    assert not list((tmp_path / "ref").glob(".seen*"))


@large
def test_a_reference_in_a_folder_of_one_machine_is_refused(two, folder, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    arguments = ("reference", "model")
    runs = start(two, "srun", folder, shared / "ref", *arguments, hidden=shared)
    code, _, (said,) = finish(runs[0])
    assert code == 1
    where = f"{shared / 'ref'}: rank 1 (cpu on {two[1].name}) does not see it"
    assert said.startswith(f"scoremode: error: {where}")
    assert finish(runs[1]) == (1, "", []) and not list(shared.iterdir())


@large
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_machine_that_dies_is_named_and_one_process_goes_on(
    launcher, two, folder, alone, tmp_path
):
    runs = start(two, launcher, folder, tmp_path, "ppl", "model")
    wait_for_parts(runs[0], tmp_path)
    two[1].kill()
    begin = time.monotonic()
    code, out, lines = finish(runs[0])
    assert time.monotonic() - begin < 5
    said = f"scoremode: error: rank 1 (cpu on {two[1].name}): {KILLED}"
    assert (code, out, lines) == (1, "", [said])
    here(folder, tmp_path, "ppl", "model", more=["--resume"])
    assert_same(tmp_path, alone)


@large
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_without_the_first_machine_the_other_ends_and_two_go_on(
    launcher, two, folder, alone, tmp_path
):
    runs = start(two, launcher, folder, tmp_path, "ppl", "model")
    wait_for_parts(runs[0], tmp_path)
    two[0].kill()
    begin = time.monotonic()
    code, out, lines = finish(runs[1])
    assert time.monotonic() - begin < 5
    assert (code, out, lines) == (1, "", [f"scoremode: error: rank 0 ({two[0].name}): {KILLED}"])
    more = ["--resume", "--quiet"]
    again = start(two, launcher, folder, tmp_path, "ppl", "model", more=more)
    assert [finish(run) for run in again] == [(0, "", [])] * 2
    assert_same(tmp_path, alone)


@large
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_cut_link_is_noticed_by_both_ends(launcher, two, folder, tmp_path):
    runs = start(two, launcher, folder, tmp_path, "ppl", "model")
    wait_for_parts(runs[0], tmp_path)
    two[1].cut()
    begin = time.monotonic()
    said = f"scoremode: error: rank 1 (cpu on {two[1].name}): {SILENT}"
    assert finish(runs[0], 40) == (1, "", [said])
    assert finish(runs[1], 40) == (1, "", [f"scoremode: error: rank 0 ({two[0].name}): {SILENT}"])
    assert 10 < time.monotonic() - begin < 30


@large
def test_a_stopped_machine_and_a_slow_link_are_waited_for(two, folder, alone, tmp_path):
    two[1].slow("tbf", "rate", "200kbit", "burst", "4kb", "latency", "400ms")
    runs = start(two, "srun", folder, tmp_path, "ppl", "model", more=["--quiet"])
    wait_for_parts(runs[0], tmp_path, 1)
    two[1].send(signal.SIGSTOP)
    time.sleep(24)
    assert runs[0].poll() is None
    two[1].send(signal.SIGCONT)
    assert [finish(run, 240) for run in runs] == [(0, "", [])] * 2
    assert_same(tmp_path, alone)


@large
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_of_three_the_first_one_alone_says_which_has_died_and_three_go_on(
    launcher, folder, alone, tmp_path
):
    machines = tmp_path / "machines"
    for number, of in ((1, 1), (2, 2), (3, 2)):
        shutil.copytree(folder / str(of), machines / str(number))
    output = tmp_path / "runs"
    with hosts(3) as three:
        runs = start(three, launcher, machines, output, "ppl", "model")
        wait_for_parts(runs[0], output)
        three[2].kill()
        assert finish(runs[1], 20) == (1, "", [])
        said = f"scoremode: error: rank 2 (cpu on {three[2].name}): {KILLED}"
        assert finish(runs[0]) == (1, "", [said])
    for _ in range(2):
        # The second time it is done already.
        with hosts(3) as three:
            more = ["--resume", "--quiet"]
            runs = start(three, launcher, machines, output, "ppl", "model", more=more)
            assert [finish(run) for run in runs] == [(0, "", [])] * 3
    assert_same(output, alone)


@large
def test_ctrl_c_at_the_first_ends_all(two, folder, tmp_path):
    runs = start(two, "srun", folder, tmp_path, "ppl", "model")
    wait_for_parts(runs[0], tmp_path)
    runs[0].send_signal(signal.SIGINT)
    code, out, lines = finish(runs[0])
    assert (code, out, lines) == (130, "", [])
    assert finish(runs[1])[1:] == ("", [])


@large
def test_a_run_that_a_rule_ends_is_the_same(two, folder, tmp_path):
    more = ["--stop-when", "ppl ±20 %"]
    runs = start(two, "srun", folder, tmp_path / "two", "ppl", "model", more=[*more, "--quiet"])
    assert [finish(run) for run in runs] == [(0, "", [])] * 2
    assert_same(tmp_path / "two", here(folder, tmp_path / "one", "ppl", "model", more=more))
