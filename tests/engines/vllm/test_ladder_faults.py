"""A fault in vLLM is told from rounding, on the step that has it; without one there is no alarm.

Each model is computed by the torch engine and by vLLM, as a ladder's steps are, and vLLM is given a
fault while it runs (`faults.py`). The llama is the demo's, which is trained; the others are random.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.vllm.dtypes import of_bf16
from safetensors.torch import load_file, save_file
from support.models import make_checkpoint

from scoremode.results.scores import Scores
from scoremode.results.statistics.alarms import Alarm, Noise, judge_step

# Process → its groups.
JOBS: dict[str, list[dict[str, Any]]] = {
    "faults of attention": [
        {
            "name": "llama",
            "dtype": "float32",
            "faults": ["rope", "kv scale", "row", "kv scale in decode"],
        },
        {
            "name": "llama, decoded",
            "dtype": "float32",
            "decode": True,
            "faults": ["kv scale in decode", "row in decode"],
        },
    ],
    "faults of architectures": [
        {"name": "gemma2", "dtype": "float32", "faults": ["softcap", "final softcap"]},
        {"name": "gpt_oss", "dtype": "float32", "faults": ["sinks"]},
        {"name": "qwen3_moe", "dtype": "float32", "faults": ["router"]},
    ],
    "faults in bf16": [
        {
            "name": "llama, bf16",
            "dtype": "bfloat16",
            "faults": ["rope", "kv scale", "row"],
        },
        {"name": "gpt_oss, bf16", "dtype": "bfloat16", "faults": ["sinks"]},
    ],
}
GROUPS = {group["name"]: (job, group) for job, groups in JOBS.items() for group in groups}
_SHAPE = {"vocab_size": 1024, "head_dim": 32, "hidden_size": 64, "max_position_embeddings": 512}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1}
_IN_BF16 = (of_bf16, pytest.mark.large)


def write_model(name: str, demo: Path, folder: Path) -> str:
    """A random model with the demo's tokenizer, in the heads that vLLM's CPU build has, large enough
    weights for its predictions to mean something."""

    def change(settings: dict[str, Any]) -> None:
        settings.update(**_SHAPE, **_TOKENS)
        if "sliding_window" in settings:
            settings["sliding_window"] = 64

    make_checkpoint(folder, name, change=change)
    tensors = load_file(folder / "model.safetensors")
    halved = {k: t / 2 if t.dim() > 1 else t for k, t in tensors.items()}
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    for file in (demo / "model").glob("tokenizer*.json"):
        shutil.copy(file, folder)
    return str(folder)


@pytest.fixture(scope="session")
def steps(engines, demo):
    """The Scores of a group's steps, by what is planted in each; vLLM runs once for all of a job."""

    def model(name: str) -> str:
        if name == "llama":
            return str(demo / "model")
        return write_model(name, demo, engines.folder / f"faults-{name}")

    def scores(name: str) -> dict[str, Scores]:
        job, _ = GROUPS[name]
        out = engines.folder / job.replace(" ", "-")
        with engines.once(job) as is_first:
            if is_first:
                groups = [
                    {
                        "text": str(demo / "heldout.txt"),
                        "model": model(g["name"].split(",")[0]),
                        **g,
                    }
                    for g in JOBS[job]
                ]
                Path(f"{out}.json").write_text(json.dumps(groups))
                script = Path(__file__).with_name("run_faults.py")
                code, _, err = engines.run([str(script), f"{out}.json", f"{out}.npz"])
                assert code == 0, err
        with np.load(f"{out}.npz") as arrays:
            columns: dict[str, dict[str, np.ndarray]] = {}
            for key in arrays.files:
                group, step, column = key.split("/")
                if group == name:
                    columns.setdefault(step, {})[column] = arrays[key]
        return {step: Scores.from_columns(found) for step, found in columns.items()}

    return scores


def judged(steps, name: str, fault: str) -> Alarm:
    found, dtype = steps(name), GROUPS[name][1]["dtype"]
    # vLLM rounds its logits to its dtype.
    return judge_step(found[fault], Noise.of(found["noise"]), dtype=dtype, logits=dtype)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=_IN_BF16 if "bf16" in n else ()) for n in GROUPS]
)
def test_there_is_no_alarm_without_a_fault(name, steps):
    found = judged(steps, name, "clean")
    assert not found.alarm, found.words
    assert found.kld < 1e-9 or "bf16" in name


@pytest.mark.parametrize(
    ("name", "fault", "kld", "looks"),
    [
        ("llama", "rope", 1e-6, {"grows"}),
        ("llama", "kv scale", 1e-3, {"everywhere"}),
        ("llama", "row", 1e-2, {"windows"}),
        ("llama, decoded", "kv scale in decode", 1e-3, {"everywhere"}),
        ("llama, decoded", "row in decode", 1e-3, {"windows"}),
        ("gemma2", "softcap", 1e-2, {"everywhere", "grows"}),
        ("gemma2", "final softcap", 1e-2, {"everywhere"}),
        ("gpt_oss", "sinks", 1e-2, {"everywhere"}),
        ("qwen3_moe", "router", 1e-2, {"everywhere"}),
        pytest.param("llama, bf16", "kv scale", 1e-3, {"everywhere"}, marks=_IN_BF16),
        pytest.param("llama, bf16", "row", 1e-2, {"windows"}, marks=_IN_BF16),
        pytest.param("gpt_oss, bf16", "sinks", 1e-2, {"everywhere"}, marks=_IN_BF16),
    ],
)
def test_a_fault_is_found(name, fault, kld, looks, steps):
    found = judged(steps, name, fault)
    assert found.alarm and found.kld > kld and found.pattern in looks, found


def test_the_row_of_a_batch_is_named(steps):
    """One of 16, which are a step of vLLM's scheduler."""
    assert "in one window of every 16 (1, 17, 33)" in judged(steps, "llama", "row").words


def test_a_fault_in_decode_steps_leaves_prefill_alone(steps):
    assert not judged(steps, "llama", "kv scale in decode").alarm


@of_bf16
@pytest.mark.large
def test_what_bf16_hides(steps):
    """A base of RoPE that is 1 % off moves this model by a tenth of what bf16's rounding does."""
    assert not judged(steps, "llama, bf16", "rope").alarm
    exact = judged(steps, "llama", "rope")
    assert exact.kld < 0.2 * judged(steps, "llama, bf16", "clean").noise_kld


def test_a_ladder_finds_it_on_its_step_and_stops_there(engines, demo, tmp_path):
    """Each process that runs vLLM has the fault, which is in decode steps alone."""
    model, here = str(demo / "model"), Path(__file__).parent
    text = ["-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "64", "--limit", "16"]
    asked = ["ladder", model, "--reference", model, *text, "--dtype", "float32", "--json"]
    code, out, err = engines.run(
        ["-m", "scoremode", *asked, "-o", str(tmp_path / "ladder")],
        SCOREMODE_TEST_FAULT="kv scale in decode",
        PYTHONPATH=os.pathsep.join([*sys.path, str(here), str(here / "fault_plugin")]),
    )
    assert code == 3, err
    found = json.loads(out)["findings"]
    judged = {step["step"]: step["judged"] for step in found["steps"]}
    assert [name for name, said in judged.items() if said["alarm"]] == ["vllm-decode"]
    assert judged["vllm-prefill"]["words"].startswith("as rounding: ")
    assert found["verdict"].startswith("alarm at vllm-decode: everywhere: ")
