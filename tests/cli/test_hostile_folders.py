"""Commands on folders that a stranger made: nothing outside is read or written, and reading changes
nothing inside."""

import json
import shutil
from pathlib import Path

import pytest
from support.comparisons import made, overlapping
from support.hostile_files import KINDS, put, snapshot
from support.run_folders import CONTEXT, write_run

from scoremode.cli.main import main

# What must be a file of ours, and what a finished run has no need of.
NEEDED = ("record.json", "scores.parquet")
OTHERS = (
    ".lock",
    "parts",
    "states",
    "record.json.tmp",
    ".record.json.0123456789abcdef.scoremode-tmp",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    scores = made(**overlapping(700, CONTEXT, 64), noise=0.3, full=False)
    return write_run(tmp_path_factory.mktemp("run") / "run", scores)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*NEEDED, *OTHERS])
def test_reading_a_finished_run_changes_nothing(run, name, kind, tmp_path, capsys):
    here, outside = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "outside"
    put(here / name, kind, outside)
    (here / "notes.tmp").write_text("mine")
    before = snapshot(tmp_path)
    for command in (["show"], ["compare"], ["status"]):
        code = main([*command, str(here)])
        out, err = capsys.readouterr()
        if name in NEEDED and command == ["status"] and code == 0:
            assert "damaged" in out and not err
        elif name in NEEDED:
            assert code == 1 and err.startswith("scoremode: error: ") and err.count("\n") == 1
        else:
            assert code == 0, (command, err)
    assert snapshot(tmp_path) == before


def test_what_a_user_keeps_in_a_finished_run_stays(run, tmp_path, capsys):
    here = Path(shutil.copytree(run, tmp_path / "run"))
    (here / "parts").mkdir()
    for name in ("mine.tmp", "parts/00000.parquet", "parts/notes", ".lock"):
        (here / name).write_text("mine")
    before = snapshot(tmp_path)
    commands = (["show"], ["compare"], ["card"], ["status"], ["check", "--quiet"])
    for command in commands:
        main([*command, str(here)])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_parts_file_beside_an_attribution(run, kind, tmp_path, capsys):
    """`report` looks for both files, and the recipe's, in every run."""
    for name in ("attribution-layer.json", "recipe.json"):
        here, outside = tmp_path / name / "run", tmp_path / name / "outside"
        shutil.copytree(run, here)
        put(here / name, kind, outside)
        before = snapshot(tmp_path)
        assert main(["report", str(here), "-o", str(tmp_path / "page.html")]) == 1
        err = capsys.readouterr().err
        assert f"{here / name}: " in err and err.count("\n") == 1
        assert snapshot(tmp_path) == before


def test_a_users_file_beside_an_output_stays(run, tmp_path, capsys):
    """`OUT.tmp` was once what is written first."""
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "a.tmp").write_text("mine")
    (tmp_path / "b.tmp").symlink_to("outside")
    before = snapshot(tmp_path)
    for name in "ab":
        assert main(["compare", str(run), "--format", "json", "-o", str(tmp_path / name)]) == 0
        assert json.loads((tmp_path / name).read_text())
    after = snapshot(tmp_path)
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 2
