"""How a command ends, whatever happens in it: one line and an exit code, in real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scoremode.cli import main as commands
from scoremode.cli.main import main
from scoremode.errors import EngineError
from scoremode.processes import run_apart

NAMES = sorted(command.__name__.rpartition(".")[2] for command in commands._COMMANDS)
ARGUMENTS = {"compare": ["a", "b"], "kld": ["m", "--reference", "r"], "demo": []}


def program(
    *arguments: str | bytes,
    path: Path | None = None,
    stdout: int = subprocess.PIPE,
    **settings: str,
) -> tuple[int, bytes, str]:
    """Exit code, stdout and stderr of a command; modules in `path` come before the installed ones."""
    before = [str(path)] if path else []
    found = os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "scoremode", *arguments],
        env=os.environ | {"PYTHONPATH": found} | settings,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout or b"", done.stderr.decode(errors="replace")


def lines_of(err: str) -> list[str]:
    assert "Traceback" not in err and "Exception ignored" not in err, err
    return err.splitlines()


class Panic(BaseException):
    """As Rust's, which are no Exceptions."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), AssertionError(), Panic("rust")])
def test_whatever_escapes_from_a_command_is_one_line(name, error, capsys, monkeypatch):
    def run(args, command):
        raise error

    module = next(c for c in commands._COMMANDS if c.__name__.endswith(name))
    monkeypatch.setattr(module, "run", run)
    arguments = [name, *ARGUMENTS.get(name, ["m"])]
    assert main(arguments) == 1
    (line,) = lines_of(capsys.readouterr().err)
    assert line.startswith(f"scoremode: error: {type(error).__name__}")
    assert "test_endings.py" in line and line.endswith("SCOREMODE_DEBUG=1 shows the traceback")
    monkeypatch.setenv("SCOREMODE_DEBUG", "1")
    assert main(arguments) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_a_library_that_fails_to_import_is_one_line(name, tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('of another machine')")
    model = str(Path(commands.__file__).parents[1] / "demo" / "model")
    arguments = {"compare": [str(tmp_path)], "demo": [], "kld": [model, "--reference", model]}
    text = [] if name in ("compare", "demo", "inspect", "show") else ["--text", "a b"]
    code, out, err = program(name, *arguments.get(name, [model]), *text, path=tmp_path)
    assert (code, out) == (1, b"")
    (line,) = lines_of(err)
    assert line.startswith("scoremode: error:")
    assert "RuntimeError: of another machine" in line or name in ("compare", "show")


def test_so_is_what_fails_before_a_command_is_known(tmp_path):
    (tmp_path / "argparse.py").write_text("raise RuntimeError('no parser here')")
    code, _, err = program("plan", path=tmp_path)
    (line,) = lines_of(err)
    assert code == 1 and "RuntimeError: no parser here (line 1 of argparse.py)" in line
    code, _, err = program("plan", path=tmp_path, SCOREMODE_DEBUG="1")
    assert code == 1 and "Traceback (most recent call last)" in err


def test_what_fails_while_a_rank_starts_is_one_line_of_the_first(demo, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'SCOREMODE_RANK' in os.environ: sys.modules['argparse'] = None\n"
    )
    model = str(demo / "model")
    flags = ["--devices", "2", "--device", "cpu", "--text", "a b", "-o", str(tmp_path / "runs")]
    code, _, err = program("ppl", model, *flags, path=tmp_path, OMP_NUM_THREADS="1")
    (line,) = lines_of(err)
    assert code == 1 and "rank 1" in line and "ModuleNotFoundError" in line


def test_what_fails_while_a_child_imports_its_work_is_one_error(tmp_path, monkeypatch, capfd):
    (tmp_path / "work_of_a_child.py").write_text(
        "import multiprocessing\n"
        "if multiprocessing.parent_process(): raise RuntimeError('not in a child')\n"
        "def work(send): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import work_of_a_child  # pyright: ignore[reportMissingImports]

    with pytest.raises(EngineError, match="RuntimeError: not in a child"):
        run_apart("a child", work_of_a_child.work, receive=print)
    assert capfd.readouterr().err == ""


@pytest.fixture(scope="module")
def plan(demo) -> list[str]:
    return ["plan", str(demo / "model"), "-f", str(demo / "heldout.txt"), "-c", "64"]


def test_a_closed_or_full_output_is_one_line(plan):
    command = f'"{sys.executable}" -m scoremode {" ".join(plan)}'
    for end, code, said in (
        (">&-", 1, "scoremode: error: stdout: Bad file descriptor\n"),
        ("> /dev/full", 1, "scoremode: error: stdout: No space left on device\n"),
        ("2>&- > /dev/null", 0, ""),
        ("--bos sometimes 2>&-", 2, ""),
        ("--bos sometimes 2> /dev/full", 2, ""),
        ("| head -c 0; exit ${PIPESTATUS[0]}", 0, ""),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{command} {end}"], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (code, said), end


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_output_that_is_not_utf8_escapes_what_it_lacks(encoding, demo):
    import json

    arguments = ["--dataset-file", "/no/§ €.jsonl"]
    settings = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    code, _, err = program("plan", str(demo / "model"), *arguments, **settings)
    (line,) = lines_of(err)
    assert code == 1 and ("€" in line or "\\u20ac" in line)
    code, out, err = program(
        "plan", str(demo / "model"), "--text", "€ ab" * 90, "-c", "64", "--json", **settings
    )
    assert code == 0 and "plan" in json.loads(out.decode(encoding))


@pytest.mark.parametrize("flag", ["MODEL", "-f", "-o"])
def test_a_name_that_is_not_utf8_is_one_line(flag, plan):
    name = b"/tmp/caf\xe9"
    arguments = ["plan", name] if flag == "MODEL" else [*plan, flag, name]
    code, _, err = program(*arguments)
    (line,) = lines_of(err)
    assert code == 2 and "/tmp/caf\\udce9: is not UTF-8" in line
