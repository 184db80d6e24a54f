"""docs/devices.md: its model of time against what was measured, and its launch files."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOOL = ROOT / "tools" / "scale_model.py"


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("scale_model", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks its module up.
    sys.modules["scale_model"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scale_model"]


@pytest.fixture(scope="module")
def points():
    return json.loads(TOOL.with_suffix(".json").read_text(encoding="utf-8"))


def test_operations_are_two_a_weight_and_four_a_pair_of_positions(model, points):
    """Llama-3.1-8B has 8,030,261,248 parameters: less its embedding and the weights of 65 norms, all
    are of linears and the head."""
    shape = model.Shape(**points["shapes"]["8B"])
    weights = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    assert shape.flops(0) == 2 * weights
    # Scores and values: 2 × 4096 each, of 1,024 positions on average, in 32 layers.
    assert shape.flops(2048) - shape.flops(0) == 4 * 4096 * 1024 * 32
    # And of 70B 70,553,706,496, with 161 norms.
    large = model.Shape(**points["shapes"]["70B"])
    assert large.flops(0) == 2 * (70_553_706_496 - 128_256 * 8192 - 161 * 8192)


def test_gpus_shorten_what_they_share(model):
    assert model.seconds(6.0, 1000, 10.0) == 106.0
    assert model.seconds(6.0, 1000, 10.0, 4, 0.5) == 31.5


def test_the_table_is_what_the_tool_prints_and_no_prediction_is_far_off(model, points):
    page = (DOCS / "log.md").read_text(encoding="utf-8")
    assert model.table(points) in page
    for what, predicted, measured, _ in model.rows_of(points):
        assert 0.89 < predicted / measured < 1.11, what


def test_every_measured_number_stands_where_it_is_said_to(points):
    fitted = points["fitted"]
    wanted = [(fitted["steady"]["from"], fitted["steady"]["tokens_a_second"])]
    wanted += [(fitted["line"]["from"], value) for value in fitted["line"]["seconds"]]
    wanted += [(fitted["fixed"]["from"], fitted["fixed"]["seconds"])]
    kinds = ("speeds", "processes", "ratios", "references")
    wanted += [(point["from"], point["measured"]) for kind in kinds for point in points[kind]]
    assert len(wanted) >= 13
    for place, value in wanted:
        page, _, section = place.partition(", ")
        text = (DOCS / page).read_text(encoding="utf-8")
        if page == "log.md":
            # From the heading or the bold words on.
            text = text[text.index(section.partition(", 2026")[0]) :]
        assert f"{value:,}" in text, (place, value)


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--start", "6.1", "--gpus", "4"], ["7.7 s, 0.009 GPU hours"]),
        (["--price", "100"], ["6.3 s, 0.002 GPU hours", "0.18 at 100 a GPU hour"]),
    ],
)
def test_one_run_is_told_in_gpu_hours_and_in_the_readers_money(flags, lines):
    command = [sys.executable, TOOL, "--tokens", "300000", "--speed", "47501", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == lines


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The page's launch files by name."""
    page = (DOCS / "devices.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:bash|yaml)\n(.*?)```", page, re.DOTALL)
    return {re.search(r"# file: (\S+)", body)[1]: body for body in blocks}


STAND_IN = """#!/bin/bash
case "$(basename "$0")" in
  sbatch) echo 17; echo "sbatch $*" >> "$CALLS" ;;
  srun) shift 2; exec "$@" ;;
  *) echo "$(basename "$0") $*" >> "$CALLS" ;;
esac
"""


@pytest.fixture
def run(tmp_path, files):
    """Runs a script with stand-ins for what it calls, and returns their command lines."""
    for name in ("sbatch", "srun", "torchrun", "scoremode"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)

    def go(script: str, *arguments: str, **variables: str) -> list[str]:
        environment = {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "CALLS": str(tmp_path / "calls"),
            "HOME": str(tmp_path),
            **{"MODEL": "m", "TEXT": "t", "RUNS": "r"},
        }
        command = ["bash", "-c", script, "script", *arguments]
        subprocess.run(command, env=environment | variables, check=True)
        return (tmp_path / "calls").read_text().splitlines()

    return go


def test_slurm_runs_shards_and_then_merges(run, files):
    task = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}
    calls = run(files["shards.sbatch"], "-c", "512", **task)
    assert calls == ["scoremode ppl m -f t --shard 3/4 -o r/shards --resume -c 512"]
    calls = run(files["submit.sh"], "-c", "512")[1:]
    assert calls[0] == "sbatch --parsable --export=ALL shards.sbatch -c 512"
    merge = "scoremode merge 'r/shards' -o 'r/merged'"
    assert calls[1] == f"sbatch --dependency=afterok:17 --wrap {merge}"


def test_slurm_starts_a_task_a_gpu(run, files):
    (call,) = run(files["nodes.sbatch"], "-c", "512", SLURM_CPUS_PER_TASK="8")
    assert call == "scoremode ppl m -f t -o r --resume -c 512"


def test_skypilot_tells_each_node_its_rank(run, files):
    task = yaml.safe_load(files["sky.yaml"])
    assert task["num_nodes"] == 2 and "scoremode" in task["setup"]
    node = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}  # fmt: skip
    (call,) = run(task["run"], **node)
    assert "--nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.1" in call
    assert "-m scoremode ppl m -o " in call


def test_kuberays_job_has_as_many_gpus_as_ranks(files):
    job = yaml.safe_load(files["rayjob.yaml"])
    words = job["spec"]["entrypoint"].split()
    ranks = int(words[words.index("-tp") + 1]) * int(words[words.index("-pp") + 1])
    cluster = job["spec"]["rayClusterSpec"]

    def gpus(group):
        (container,) = group["template"]["spec"]["containers"]
        return container["resources"]["limits"]["nvidia.com/gpu"]

    workers = sum(g["replicas"] * gpus(g) for g in cluster["workerGroupSpecs"])
    assert gpus(cluster["headGroupSpec"]) + workers == ranks == 16
    assert "distributed_executor_backend=ray" in words
