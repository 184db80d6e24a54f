"""`scoremode sweep`, and `scoremode kld` of several models, as a user meets them."""

import csv
import io
import json
import os

import pytest
from support import sweep_kill_points
from support.programs import run
from support.warm import call

import scoremode
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.errors import GateNotMet
from scoremode.results.folders.store import find_runs


@pytest.fixture(scope="module")
def folder(demo, tmp_path_factory):
    """A folder with two quants, a text, and a sweep of them under two protocols."""
    place = tmp_path_factory.mktemp("sweep")
    for variant in VARIANTS[:2]:
        quantize_folder(demo / "model", place / variant.name, variant)
    (place / "text.txt").write_text((demo / "heldout.txt").read_text(encoding="utf-8")[:1500])
    (place / "s.toml").write_text(f"""
base = "{demo / "model"}"
models = ["{VARIANTS[0].name}", "{VARIANTS[1].name}"]
texts = "text.txt"
flags.device = "cpu"
[[protocols]]
protocol = "disjoint"
context-length = 64
[[protocols]]
protocol = "disjoint"
context-length = 32
""")
    return place


@pytest.fixture(scope="module")
def names():
    return [variant.name for variant in VARIANTS[:2]]


def test_several_models_are_ranked_and_told_of_as_they_end(folder, names, demo, capsys, tmp_path):
    flags = ["--reference", str(demo / "model"), "-f", str(folder / "text.txt"), "--protocol",
             "disjoint", "-c", "64", "--device", "cpu", "-o", str(tmp_path)]  # fmt: skip
    models = [str(folder / name) for name in names]
    code, out, err = run(capsys, "kld", *models, "/no/such/model", *flags)
    assert code == 1
    assert out.startswith("lowest: ") and all(name in out for name in names)
    assert out.endswith(f"\nmore      scoremode report {tmp_path} -o report.html\n")
    lines = err.splitlines()
    # Once, and before anything is scored.
    assert [i for i, line in enumerate(lines) if "no interval and no test" in line] == [0]
    ended = [line for line in lines if " of 3)" in line]
    assert len(ended) == 3 and sum("KLD " in line and "PPL / base ×" in line for line in ended) == 2
    assert sum("/no/such/model: error: no such folder" in line for line in ended) == 1
    assert lines[-1].startswith("scoremode: error: 1 of 3 runs failed")
    code, _, err = run(capsys, "kld", "/no/such/model", "/nor/this", *flags)
    assert code == 1 and err.endswith(" 2 of 2 runs failed, as said above\n")
    # The same again, as CSV, with a gate that nobody meets.
    code, out, err = run(capsys, "kld", *models, *flags, "--max-kld", "1e-9", "--format", "csv")
    assert code == 4 and err.count("gate not met") == 2
    _, found, _ = run(capsys, "kld", *models, *flags, "--max-kld", "1e-9", "--json")
    gates = json.loads(found)["comparisons"][0]["gates"]
    assert [(gate["label"], gate["met"]) for gate in gates] == [(name, False) for name in names]
    assert all(gate["chance"].startswith("by a value without an interval (") for gate in gates)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["model"] for row in rows} == {"demo", *names}
    assert len([r for _, r in find_runs(tmp_path) if "reference" in r]) == 2
    code, out, err = run(capsys, "kld", *models, *flags, "--llama-cpp-block")
    assert code == 2 and "--llama-cpp-block: takes one MODEL" in err


def test_a_model_is_called_what_its_user_says_and_may_be_called_something_else(
    folder, names, demo, capsys, tmp_path
):
    models = [str(folder / name) for name in names]
    flags = ["--reference", str(demo / "model"), "-f", str(folder / "text.txt"), "--protocol",
             "disjoint", "-c", "64", "--device", "cpu", "-o", str(tmp_path)]  # fmt: skip
    for labels in (["eight", "four"], ["8", "4"]):
        given = [word for label in labels for word in ("--label", label)]
        code, out, err = run(capsys, "kld", *models, *flags, *given, "--json")
        value = json.loads(out)
        assert code == 0 and [run["label"] for run in value["comparisons"][0]["runs"]] == labels
        assert all(f"{label}: KLD " in err for label in labels)
        assert value["sweep"]["labels"] == dict(zip(models, labels, strict=True))
    # The scores are those of the first call.
    assert sorted(r["label"] for _, r in find_runs(tmp_path) if "reference" in r) == ["4", "8"]
    code, out, _ = run(capsys, "status", str(tmp_path), "--json")
    assert {state["label"] for state in json.loads(out)} == {"demo", "4", "8"}
    runs = [str(path) for path, record in find_runs(tmp_path) if "reference" in record]
    code, _, err = run(capsys, "kld", *runs, *flags, "--label", "x", "--label", "y")
    assert code == 2 and "is a finished run, which has its own label" in err


def test_a_file_says_it_all_and_a_look_ahead_runs_nothing(folder, names, capsys):
    asked = ["sweep", str(folder / "s.toml")]
    code, out, err = run(capsys, *asked, "--dry-run")
    assert code == 0 and "to run   6 of 6" in out and not (folder / "s").exists()
    code, out, err = run(capsys, *asked, "--json", "--quiet")
    value = json.loads(out)
    assert (code, err) == (0, "")
    assert [e["status"] for e in value["sweep"]["entries"]] == ["done"] * 4
    lengths = [c["protocol"]["context_length"] for c in value["comparisons"]]
    assert lengths == [64, 32]
    for comparison in value["comparisons"]:
        assert {row["model"] for row in comparison["runs"]} == set(names)
    code, out, err = run(capsys, *asked, "--dry-run")
    assert code == 0 and "to run   0 of 6" in out
    # As CSV one table, whose lines say of which text and protocol they are.
    code, out, err = run(capsys, *asked, "--format", "csv", "--quiet")
    assert (code, out) == (0, "")
    code, out, err = run(capsys, *asked, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    protocols = [f"disjoint+context-length={length}" for length in (64, 32)]
    assert (
        code == 0 and [row["protocol"] for row in rows] == [protocols[0]] * 3 + [protocols[1]] * 3
    )
    assert {row["text"] for row in rows} == {"text.txt"}
    texts = {c["corpus"]["text"]["sha256"] for c in value["comparisons"]}
    assert {row["text_sha256"] for row in rows} == texts
    assert all(float(row["kld_nats"]) > 0 for row in rows if row["is_base"] == "0")
    code, out, err = run(capsys, "compare", str(folder / "s"))
    assert code == 1 and "not comparable" in err


def test_a_wrong_key_is_named(folder, capsys):
    (folder / "wrong.toml").write_text('base = "b"\nmodels = "q"\nflags.devise = "cpu"\n')
    code, out, err = run(capsys, "sweep", str(folder / "wrong.toml"))
    assert (code, out) == (2, "") and "wrong.toml: its flags have devise" in err


def test_the_same_from_python(folder, names, demo, tmp_path, capsys):
    models = [folder / name for name in names]
    settings = {"device": "cpu", "quiet": True}
    found = scoremode.sweep(
        demo / "model",
        [*models, "/no/such/model"],
        texts=[folder / "text.txt"],
        protocols=[{"protocol": "disjoint", "context_length": 64}],
        output=tmp_path,
        **settings,
    )
    assert [run.record.document["checkpoint"]["source"] for run in found.runs] == list(
        map(str, models)
    )
    assert list(found.failed) == ["/no/such/model"] and found.folder == tmp_path
    record = found.runs[0].record.document
    assert record["command"][:2] == ["scoremode", "kld"]
    one = scoremode.measure(
        models[0], reference=demo / "model", file=folder / "text.txt", protocol="disjoint",
        context_length=64, output=tmp_path / "alone", **settings,
    )  # fmt: skip
    assert record["metrics"] == one.record.document["metrics"]
    with pytest.raises(GateNotMet):
        scoremode.sweep(
            demo / "model", models, texts=[folder / "text.txt"],
            protocols=[{"protocol": "disjoint", "context_length": 64}],
            output=tmp_path, max_kld=1e-9, **settings,
        )  # fmt: skip


POINTS = int(os.environ.get("SCOREMODE_SWEEP_KILLS", "2"))


def test_wherever_it_is_killed_the_same_call_ends_alike(tmp_path):
    code, out, err = call(sweep_kill_points.main, tmp_path, POINTS)
    assert (code, out) == (0, f"{POINTS} points\n"), f"{out}\n{err}"
