"""`scoremode status` as a user meets it."""

import json
import time

from support.programs import run
from support.run_folders import scores_of, write_run
from support.warm import CONTEXT, run_killed

from scoremode.cli.main import main
from scoremode.results.folders.store import RunFolder
from scoremode.runs.sweep.manifest import SCHEMA, SCHEMA_VERSION, write_manifest


def test_runs_of_a_folder_in_every_form(capsys, tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, scores_of(0.3))
    code, out, err = run(capsys, "status", str(tmp_path))
    assert (code, err) == (0, "") and out.count(" done ") == 2
    code, out, _ = run(capsys, "status", str(tmp_path / "a"), str(tmp_path), "--json")
    states = json.loads(out)
    # Each once, however often it is named.
    assert code == 0 and [s["folder"] for s in states] == [str(tmp_path / n) for n in ("a", "b")]
    assert states[0]["state"] == "done" and states[0]["estimates"]["kld"]["value"] > 0
    assert run(capsys, "status", str(tmp_path), "--format", "csv")[1].startswith("folder,state,")
    code, out, err = run(capsys, "status", str(tmp_path / "none"))
    assert code == 1 and "is not there" in err and err.count("\n") == 1
    assert run(capsys, "status", str(tmp_path), "--watch", "0")[0] == 2
    # Nothing runs, so there is nothing to wait for.
    assert run(capsys, "status", str(tmp_path), "--watch")[1].count(" done ") == 2


def write_sweep(folder, *changes):
    """A sweep's manifest with an entry for each of `changes`, of a model that waits."""
    pair = {"corpus": "text", "protocol": "disjoint", "protocol_sha256": "p", "reference": None}
    entry = {"model": "q1", "pair": 0, "status": "waiting", "folder": None, "error": None,
             "asked": None}  # fmt: skip
    manifest = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "created": "c", "updated": "u",
                "command": [], "base": "base", "revision": None, "models": ["q*"], "pairs": [pair],
                "entries": [entry | change for change in changes], "sha256": ""}  # fmt: skip
    write_manifest(folder, manifest)  # pyright: ignore[reportArgumentType]


def test_a_sweep_has_its_waiting_and_failed_models_too(capsys, tmp_path):
    write_sweep(tmp_path, {}, {"model": "q2", "status": "failed", "error": "q2: is broken"})
    code, out, _ = run(capsys, "status", str(tmp_path))
    assert code == 0 and " waiting " in out and " failed " in out and "q2: is broken" in out
    write_run(tmp_path / "a", scores_of(0.3))
    states = json.loads(run(capsys, "status", str(tmp_path), "--json", "--watch")[1])
    assert [s["state"] for s in states] == ["done", "waiting", "failed"]


def test_a_model_whose_run_is_invalid_is_listed_once(capsys, tmp_path):
    why = "window 3, position 7: logprob is nan"
    write_run(tmp_path / "a", scores_of(0.3), changes={"status": "invalid", "reason": why})
    write_sweep(tmp_path, {"model": "q1", "status": "failed", "error": why},
                {"model": "q2", "status": "failed", "error": "q2: is broken"})  # fmt: skip
    states = json.loads(run(capsys, "status", str(tmp_path), "--json")[1])
    assert [s["state"] for s in states] == ["invalid", "failed"]
    assert states[1]["problem"] == "q2: is broken"


def test_a_real_run_killed_and_gone_on_with_is_watched_to_its_end(demo, tmp_path, capsys):
    output = tmp_path / "runs"
    command = ["ppl", str(demo / "model"), "-f", str(demo / "heldout.txt"), "--protocol", "disjoint",
               "-c", "32", "--limit", "200", "--batch-size", "2", "--max-memory", "1MB", "--device",
               "cpu", "--dtype", "float32", "--quiet", "-o", str(output)]  # fmt: skip
    run_killed(command, output, 2)
    (found,) = json.loads(run(capsys, "status", str(output), "--json")[1])
    assert (found["state"], found["of"]) == ("killed", 200) and 4 <= found["windows"] < 200
    assert found["resume"].endswith(f"-o {output} --resume")
    process = CONTEXT.Process(target=main, args=([*command, "--resume"],))
    process.start()
    watched = ""
    while process.is_alive():
        watched += run(capsys, "status", str(output), "--watch", "0.1")[1]
    watched += run(capsys, "status", str(output))[1]
    assert process.exitcode == 0 and " running " in watched and " done " in watched


def test_watching_ends_when_nothing_runs(capsys, tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", scores_of(0.3))
    held = RunFolder.open(folder)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert run(capsys, "status", str(tmp_path), "--watch", "7")[0] == 0
    # A run that is done is done, whoever still clears up behind it.
    assert 7 not in slept
    held.close()
