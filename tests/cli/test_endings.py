"""How a command ends, whatever happens in it: one line and an exit code, in real processes."""

from pathlib import Path

import pytest
from support.programs import lines_of, program

from scoremode.cli import main as commands
from scoremode.cli.main import main


class Panic(BaseException):
    """As Rust's, which are no Exceptions."""


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), AssertionError(), Panic("rust")])
def test_whatever_escapes_from_a_command_is_one_line(error, capsys, monkeypatch):
    def run(spec, session):
        raise error

    monkeypatch.setattr(commands.command_class("inspect"), "run", run)
    arguments = ["inspect", "m"]
    assert main(arguments) == 1
    (line,) = lines_of(capsys.readouterr().err)
    assert line.startswith(f"scoremode: error: {type(error).__name__}")
    assert "test_endings.py" in line and line.endswith("SCOREMODE_DEBUG=1 shows the traceback")
    monkeypatch.setenv("SCOREMODE_DEBUG", "1")
    assert main(arguments) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["compare", "demo", "generate", "inspect", "ppl"])
def test_a_library_that_fails_to_import_is_one_line(name, tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('of another machine')")
    (tmp_path / "prompts.txt").write_text("a b")
    model = str(Path(commands.__file__).parents[1] / "demo" / "model")
    prompts = ["--prompts", str(tmp_path / "prompts.txt"), "-o", str(tmp_path / "o.jsonl")]
    arguments = {
        "compare": [str(tmp_path)],
        "demo": ["--json", "-o", str(tmp_path / "demo")],
        "generate": [model, *prompts],
        "ppl": [model, "--text", "a b"],
    }
    code, out, err = program(name, *arguments.get(name, [model]), path=tmp_path)
    assert (code, out) == (1, b"")
    (line,) = lines_of(err)
    assert line.startswith("scoremode: error:")
    assert "RuntimeError: of another machine" in line or name == "compare"


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
