"""`scoremode check` from the command line: exit codes, the first line, JSON, and from Python."""

import json
import re
from pathlib import Path

import pytest
from support.forged_runs import forged
from support.programs import error_of

import scoremode
from scoremode.cli.main import main
from scoremode.results.folders.store import find_runs


@pytest.fixture(scope="module")
def run(demo, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    text = folder / "text.txt"
    text.write_bytes((demo / "heldout.txt").read_bytes()[:2000])
    how = ["-f", str(text), "-c", "64", "--protocol", "disjoint", "--device", "cpu", "--quiet"]
    assert main(["ppl", str(demo / "model"), *how, "-o", str(folder / "runs")]) == 0
    return next(find_runs(folder / "runs"))[0]


def test_a_true_run_ends_with_0_and_its_counts(run, demo, capsys):
    against = ["--against", str(demo / "model"), "--share", "0.5"]
    assert main(["check", str(run), *against, "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"held: \d+; could not be checked: 0; wrong: 0", lines[0])
    assert any("the same bits in logprob" in line for line in lines)


def test_a_forged_run_ends_with_3_and_says_both_values(run, tmp_path, capsys):
    other = forged(run, tmp_path / "run", lambda r: r["metrics"]["ppl"].update(value=4.9))
    assert main(["check", str(other), str(run)]) == 3
    out = capsys.readouterr().out
    assert "metrics: ppl " in out and "WRONG: its metrics.ppl.value is 4.9, and its" in out
    assert out.partition("\n")[0].endswith("wrong: 1")
    assert main(["check", str(other), "--json"]) == 3
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "scoremode.check" and value["counts"]["wrong"] == 1
    assert main(["check", str(other), "--quiet"]) == 3
    assert capsys.readouterr().out == ""


def test_what_is_no_run_and_what_is_no_share_are_refused(run, tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 1
    assert "holds no finished" in capsys.readouterr().err
    for bad in ("0", "1.5"):
        assert main(["check", str(run), "--against", "m", "--share", bad]) == 2
        assert "must be above 0 and at most 1" in capsys.readouterr().err
    assert main(["check", str(run), "--against", str(tmp_path / "no model")]) == 1


@pytest.mark.parametrize(
    "flags", [["--share", "0.5"], ["--seed", "0"], ["--device", "cpu"], ["--trust-remote-code"]]
)
def test_a_flag_of_the_second_run_is_refused_without_it(flags, run, capsys):
    assert main(["check", str(run), *flags]) == 2
    line = f"{' '.join(flags)}: changes nothing without --against MODEL"
    assert error_of(capsys.readouterr().err) == f"scoremode: error: {line}"


def test_the_same_from_python(run, demo):
    value = scoremode.check(scoremode.open_run(run), against=demo / "model", file=())
    assert value["counts"]["wrong"] == 0 and value["runs"][0]["second_run"]["same_bits"]
    assert scoremode.check([str(run)])["counts"]["wrong"] == 0
