"""`scoremode tasks` from the command line: refusals anywhere, whole runs where the harness is."""

import json
from importlib.util import find_spec

import pytest
from support.harness_runs import NEEDED, local_data
from support.local_tasks import ALL
from support.task_runs import rounded

import scoremode
from scoremode.cli import tasks as command
from scoremode.cli.main import main
from scoremode.results.folders.store import find_runs

__all__ = ["local_data"]
needs_harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason=NEEDED)


def test_without_the_extra_it_says_what_to_install(demo, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["tasks", str(demo / "model"), "--tasks", "hellaswag"]) == 2
    assert "pip install 'scoremode[lm-eval]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tasks", " , "], "names no task"),
        (["--tasks", "a", "--num-fewshot", "-1"], "--num-fewshot -1: must be at least 0"),
        (["--tasks", "a", "--limit", "2.5"], "--limit 2.5: must be a number of questions"),
        (["--tasks", "a", "--limit", "0"], "--limit 0: must be a number of questions"),
        (["--tasks", "a", "--include-path", "no-such-folder"], "no-such-folder: isn't a folder"),
    ],
)
def test_a_flag_that_means_nothing_is_refused(flags, said, demo, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    assert main(["tasks", str(demo / "model"), *flags]) == 2
    assert said in capsys.readouterr().err


@needs_harness
@pytest.mark.filterwarnings("ignore")
def test_a_run_is_shown_checked_and_gone_on_with(demo, local_data, tmp_path, capsys):
    model = rounded(demo / "model", tmp_path / "model")
    asked = ["tasks", str(model), "--reference", str(demo / "model"), "--tasks", ",".join(ALL),
             "--include-path", str(local_data), "--confirm-run-unsafe-code",
             "--device", "cpu", "--dtype", "float32"]  # fmt: skip
    assert main([*asked, "-o", str(tmp_path / "runs")]) == 0
    shown, said = capsys.readouterr()
    answer, _, headings = shown.splitlines()[:3]
    assert "of all tasks together; letters acc " in answer and headings.split()[-1] == "KLD"
    assert "McNemar" not in said and "it/s" not in said
    ((folder, record),) = find_runs(tmp_path / "runs")
    assert record["status"] == "done" and record["tasks"]["groups"].keys() == {"letters"}
    assert main(["check", str(folder)]) == 0
    assert "wrong: 0" in capsys.readouterr().out
    assert main(["show", str(folder), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == record["requests"]
    assert main([*asked, "-o", str(tmp_path / "runs"), "--resume"]) == 0
    again = scoremode.tasks(
        model, ALL, reference=demo / "model", include_path=local_data, confirm_run_unsafe_code=True,
        device="cpu", dtype="float32", output=tmp_path / "runs", resume=True, quiet=True,
    )  # fmt: skip
    assert again.folder == folder and again.record.document["tasks"] == record["tasks"]
    assert len(list(find_runs(tmp_path / "runs"))) == 1
