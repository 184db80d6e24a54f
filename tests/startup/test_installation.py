"""What a measurement needs, and what is said before anything is loaded where it is not there."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
from support.programs import told
from support.waiting import HANG

from scoremode.cli.main import main
from scoremode.startup.warmup import _CALLED, _ELSEWHERE, _NEEDED, untested


def measured(demo, tmp_path, before: str) -> tuple[int, str]:
    """A measurement in a shell, after `before`."""
    command = f'"{sys.executable}" -c "{PROGRAM}" ppl {demo / "model"} --text "a b" -c 64'
    command += f" -o {tmp_path / 'runs'}"
    done = subprocess.run(
        ["bash", "-c", f"{before}\n{command}"],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert not (tmp_path / "runs").exists() and done.stdout == ""
    return done.returncode, done.stderr


# What hides a package, and tells of a model that is loaded.
PROGRAM = """
import os, sys
sys.modules.update({n: None for n in os.environ.get('HIDDEN', '').split()})
from scoremode.checkpoint import files
files.open_checkpoint = None
from scoremode.__main__ import program
sys.exit(program())
""".strip()


@pytest.mark.parametrize("name", ["pyarrow", "safetensors"])
def test_a_missing_package_is_told_before_a_model_is_opened(name, demo, tmp_path):
    code, err = measured(demo, tmp_path, f"export HIDDEN={name}")
    assert code == 1
    assert err == f"scoremode: error: the package {name} is not installed: pip install {name}\n"


def test_an_address_space_too_small_for_the_libraries_is_refused_at_once(demo, tmp_path):
    code, err = measured(demo, tmp_path, "ulimit -v 1200000")
    assert code == 1 and err.startswith("scoremode: error: ulimit -v 1200000: the libraries alone")
    assert err.count("\n") == 1


def test_the_needed_packages_are_those_of_the_distribution():
    from importlib.metadata import requires

    wanted = [r for r in requires("scoremode") or () if "extra" not in r]
    names = {r.split(">")[0].split("<")[0].replace("-", "_") for r in wanted}
    assert names == {_CALLED.get(name, name) for name in (*_NEEDED, _ELSEWHERE)}


def test_a_version_that_was_not_tested_is_said_and_used(demo, tmp_path, monkeypatch, capsys):
    """In one line, whichever package it is; the run goes on."""
    wanted = ["transformers<5.2,>=5.1", "numpy>=2,<3", "pyyaml<7", "x==1; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    line = f"transformers {version('transformers')}: scoremode was tested with >=5.1,<5.2"
    assert list(untested()) == [line]
    argv = ["ppl", str(demo / "model"), "--text", "a b " * 9, "-c", "8", "--limit", "1"]
    assert main([*argv, "--device", "cpu", "-o", str(tmp_path)]) == 0
    assert told(capsys.readouterr().err) == f"scoremode: {line}\n"


def test_a_source_tree_promises_no_versions(monkeypatch):
    def none(_):
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.requires", none)
    assert list(untested()) == []
