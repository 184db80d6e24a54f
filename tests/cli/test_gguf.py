"""GGUF files as a user gives them to the commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.gguf.golden import make_pair
from support.programs import run

PROTOCOL = ["--protocol", "disjoint", "-c", "64"]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return make_pair(tmp_path_factory.mktemp("pair"), "llama")[1]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("It is a truth universally acknowledged. " * 20)
    return path


def test_a_plan_needs_no_torch(file, text):
    program = (
        "import sys; from scoremode.cli.main import main; "
        f"code = main(['plan', {str(file)!r}, '-f', {str(text)!r}, *{PROTOCOL}, '--json']); "
        "sys.exit(code or ('torch' in sys.modules) * 7)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["scored"] > 700


def test_a_folder_with_one_is_its_model(file, text, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "m-F32.gguf").symlink_to(file)
    flags = [
        "-f",
        str(text),
        *PROTOCOL,
        "--dtype",
        "float32",
        "-o",
        str(tmp_path / "runs"),
        "--quiet",
    ]
    found = []
    for model in (file, tmp_path / "model"):
        code, out, err = run(capsys, "ppl", str(model), *flags, "--json")
        assert (code, err) == (0, "")
        found.append(json.loads(out))
    assert found[0]["metrics"] == found[1]["metrics"]
    assert found[1]["checkpoint"]["path"] == str(tmp_path / "model" / "m-F32.gguf")


def test_a_reference_and_what_is_compared_with_it(file, text, tmp_path, capsys):
    flags = [*PROTOCOL, "--dtype", "float32", "--quiet"]
    base = str(tmp_path / "base")
    code, *_ = run(capsys, "reference", str(file), "-f", str(text), "-o", base, *flags)
    assert code == 0
    runs = ["-o", str(tmp_path / "runs"), "--quiet", "--json"]
    code, out, err = run(capsys, "kld", str(file), "--reference", base, "--dtype", "float32", *runs)
    assert (code, err) == (0, "")
    assert json.loads(out)["metrics"]["kld"]["value"] == 0


def test_it_is_inspected(file, capsys):
    code, out, err = run(capsys, "inspect", str(file), "--json")
    found = json.loads(out)
    assert (code, err, found["runs"]["possible"]) == (0, "", True)
    assert (found["source"], found["weight_files"], found["model_type"]) == (str(file), 1, "llama")
    assert found["vocabulary"]["tokenizer"] == 272


@pytest.mark.parametrize("command", ["ppl", "plan", "inspect"])
def test_a_damaged_file_is_one_line(command, file, text, tmp_path, capsys):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-5000])
    flags = [] if command == "inspect" else ["-f", str(text), *PROTOCOL]
    flags += ["-o", str(tmp_path / "runs")] if command == "ppl" else []
    code, out, err = run(capsys, command, str(cut), *flags)
    assert (code, out) == (1, "")
    (line,) = err.splitlines()[-1:]
    assert "truncated or damaged" in line and str(cut) in line
    assert not (tmp_path / "runs").exists()


def test_vllm_is_not_given_one(file, text, tmp_path, capsys):
    flags = ["-f", str(text), *PROTOCOL, "-o", str(tmp_path / "runs"), "--engine", "vllm"]
    code, out, err = run(capsys, "ppl", str(file), *flags)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].endswith(
        "is a GGUF file, which vLLM is not given here: use --engine torch"
    )
