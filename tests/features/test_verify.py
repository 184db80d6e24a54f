"""`scoremode verify` as a user meets it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.junit import read_junit
from support.programs import run
from support.waiting import HANG, wait_for

from scoremode.cli.engines import reference_options
from scoremode.cli.main import main
from scoremode.cli.variants import variants_of
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.spec.engine import Engine


@pytest.fixture
def base(demo) -> list[str]:
    text = "-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "128"
    return ["verify", str(demo / "model"), "--device", "cpu", *text]


@pytest.fixture(scope="module")
def found(demo, warm_children) -> dict[str, Any]:
    """What one whole run printed as JSON."""
    text = "-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "128"
    own = "--dtype", "bfloat16", "--device", "cpu", "--windows", "9", "--seed", "4", "--json"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["verify", str(demo / "model"), *text, *own])
    assert (code, err.getvalue()) == (0, "")
    return json.loads(out.getvalue())


@pytest.fixture
def answer(monkeypatch):
    """Lets `verify` find a given value instead of running engines."""
    return lambda value: monkeypatch.setattr(
        "scoremode.runs.rescore.verify.verify", lambda *_, **__: value
    )


def test_json_is_the_whole_result(found):
    assert found["schema"] == "scoremode.verify" and found["agree"]
    assert found["command"][:2] == ["scoremode", "verify"]
    assert len(found["sample"]["windows"]) == 9 and found["sample"]["seed"] == 4


def test_the_table_says_what_was_found(found, answer, base, capsys):
    answer(found)
    code, out, err = run(capsys, *base)
    assert (code, err) == (0, "")
    for words in (
        "torch in float32, arithmetic weights, row sums in float64",
        "9 of ",
        "(seed 4)",
        "torch - reference",
    ):
        assert words in out
    for words in ("PPL ratio", "bias", "95 %", "rms", "worst", "same top-1", "agrees: as bfloat16"):
        assert words in out
    assert "proves" not in out


def test_the_table_has_the_engines_side_by_side(found, answer, base, capsys):
    torch = found["engines"]["torch"]
    difference = torch["difference"]
    bias = difference["bias"] | {"ci95": None, "note": "2 blocks"}
    vllm = torch | {"difference": difference | {"bias": bias}, "is_reference": True}
    between = [vllm | {"engine": "vllm", "other": "torch"}]
    answer(found | {"engines": {"torch": torch, "vllm": vllm}, "between": between})
    code, out, _ = run(capsys, *base)
    assert code == 0 and "proves that it repeats, no more" in out
    for words in (
        "torch - reference",
        "vllm - reference",
        "vllm - torch",
        "no interval   2 blocks",
    ):
        assert words in out


@pytest.mark.parametrize("quiet", [False, True])
def test_a_disagreement_is_exit_code_3(quiet, found, answer, base, capsys, tmp_path):
    words = {"agrees": False, "arithmetic": "same", "words": "disagrees: rms 3 nats"}
    engines = {"torch": found["engines"]["torch"] | {"verdict": words}}
    answer(found | {"agree": False, "engines": engines})
    file = tmp_path / "junit.xml"
    code, out, err = run(capsys, *base, *["--quiet"] * quiet, "--junit", str(file))
    assert code == 3 and err == ""
    ((_, name, outcome, told),) = read_junit(file.read_text())
    assert (name, outcome, told) == ("torch - reference", "failure", words["words"])
    assert out == "" if quiet else "disagrees: rms 3 nats" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--engines", "abacus"], 2, "--engines abacus: abacus is not one of torch, vllm"),
        (["--engines", "torch,"], 2, "an empty name"),
        (["--engines", "torch,torch"], 2, "torch is named twice"),
        (["--engine", "torch"], 2, "--engine"),
        (["--variant", "vllm a"], 2, "--variant vllm a: a is not KEY=VALUE"),
        (["--engines", "torch@/no/such"], 1, "/no/such: is no Python: name an interpreter"),
        (["--no-reference"], 2, "--no-reference: leaves torch alone, with no other one"),
        (["--windows", "0"], 2, "--windows 0"),
        (["--worst", "0"], 2, "--worst 0"),
        (["--junit", "no/a.xml"], 2, "--junit no/a.xml: there is no such folder"),
        (["--seed", "-1"], 2, "--seed -1"),
        (["-tp", "2"], 2, "--engine vllm"),
        (["--head-dtype", "model"], 2, "--engine vllm"),
        (["--limit", "1", "-c", "32"], 2, "31 scored targets"),
        (["--device", "tpu7"], 2, "tpu7"),
        (["--quantization", "awq"], 2, "awq"),
        (["-o", "runs"], 2, "-o"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, code, message, base, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(capsys, *base, *arguments)
    assert got == code and out == ""
    lines = [line for line in err.splitlines() if "error" in line]
    assert len(lines) == 1 and message in lines[0] and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_two_installations_are_compared_on_one_plan(base, capsys, tmp_path):
    """Another environment's Python, and the same one with a variable of its own."""
    python = tmp_path / "other" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    other = f"torch@{tmp_path / 'other'}"
    words = "--engines", f"torch,{other}", "--variant", "torch dtype=float16 CHILD_ALONE=1"
    dtype = "--dtype", "float32", "--windows", "2", "--worst", "2", "--json"
    code, out, err = run(capsys, *base, *words, *dtype)
    assert code == 0, err
    result = json.loads(out)
    assert list(result["engines"]) == ["torch", "torch@other", "torch dtype=float16 CHILD_ALONE=1"]
    _, elsewhere, variant = result["engines"].values()
    assert elsewhere["interpreter"]["path"] == str(python) and not elsewhere["is_reference"]
    assert elsewhere["interpreter"]["packages"]["torch"] == result["versions"]["torch"]
    assert variant["environment"] == {"CHILD_ALONE": "1"} and variant["compute"] == "float16"
    same, *others = result["between"]
    # Another process of the same installation: nothing moves, to the bit.
    assert same["difference"]["rms"] == same["difference"]["worst"] == 0 and same["worst"] == []
    assert all(pair["verdict"]["agrees"] and pair["difference"]["rms"] > 1e-5 for pair in others)
    for pair in others:
        bins = pair["by_position"]
        assert [b["first"] for b in bins] == [1, 16, 32, 64] and bins[-1]["last"] == 127
        assert sum(b["n"] for b in bins) == result["sample"]["scored"]
        worst = pair["worst"]
        assert len(worst) == 2 and worst[0]["difference"] == pair["difference"]["worst"]
        assert worst[0]["target_text"] and worst[0]["context"]


def test_without_a_reference_engines_are_compared_alone(base, capsys):
    words = "--no-reference", "--windows", "2", "--dtype", "bfloat16"
    code, out, err = run(capsys, *base, *words, "--variant", "torch dtype=float32",
                         "--engines", "torch", "--json")  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert result["reference"] is None and result["agree"]
    assert all("verdict" not in engine for engine in result["engines"].values())
    (pair,) = result["between"]
    assert (pair["engine"], pair["other"]) == ("torch dtype=float32", "torch")
    assert pair["verdict"]["words"].startswith("agrees: as bfloat16")


def test_a_flag_goes_to_the_engine_that_can_obey_it():
    given = Engine(
        dtype="float16", device="cpu", batch_size=3, max_memory=2**30, arithmetic="weights",
        tensor_parallel_size=2, head_dtype="model", engine_arg=["block_size=16"],
    )  # fmt: skip
    options = variants_of(given, "torch,vllm", [])
    assert list(options) == ["torch", "vllm"]
    torch, vllm = options["torch"].options, options["vllm"].options
    assert isinstance(torch, TorchOptions) and isinstance(vllm, VllmOptions)
    assert (torch.dtype, torch.device, torch.batch_windows) == ("float16", "cpu", 3)
    assert vllm.dtype == "float16" and vllm.head_dtype == "model"
    assert vllm.arguments["tensor_parallel_size"] == 2 and vllm.arguments["block_size"] == 16
    reference = reference_options(given)
    assert (reference.dtype, reference.device) == ("float32", "cpu")
    assert (reference.batch_windows, reference.max_memory) == (3, 2**30)
    assert given.device == "cpu" and given.tensor_parallel_size == 2


def marked(mark: str) -> list[int]:
    """Living processes with `mark` in their environment, but none that only waits to be read out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_marked = entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if is_marked:
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_behind(how, base):
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "scoremode", *base, "--windows", "1000", "--dtype", "bfloat16"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"VERIFY_TEST": mark, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    # The engine's process has begun when it leads a group of its own.
    wait_for(lambda: any(os.getpgid(p) == p for p in marked(mark)), process)
    process.send_signal(how)
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert out == ""
    if how == signal.SIGINT:
        assert err == "scoremode: interrupted\n"
    wait_for(lambda: not marked(mark))
