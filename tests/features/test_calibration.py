"""Flags of the calibration text, and the run that has them."""

import json

import pytest

from scoremode.cli.main import main
from scoremode.results.folders.store import read_record


def run(capsys, *argv):
    code = main([str(word) for word in argv])
    return code, *capsys.readouterr()


@pytest.fixture
def text(demo, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text((demo / "heldout.txt").read_text()[:3000])
    return file


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--calibration", "./x.txt"], "x.txt: No such file"),
        (["--calibration", "TEXT", "--calibration-split", "x"], "--calibration-split x: changes"),
        (["--calibration", ""], "--calibration: the name is empty"),
    ],
)
def test_flags_that_mean_nothing_are_refused(flags, line, demo, text, tmp_path, capsys):
    flags = [str(text) if flag == "TEXT" else flag for flag in flags]
    code, _, err = run(capsys, "ppl", demo / "model", "-f", text, "-o", tmp_path / "runs", *flags)
    assert code in (1, 2) and line in err
    assert not (tmp_path / "runs").exists()


def test_a_run_says_that_its_text_is_the_calibration_text(demo, text, tmp_path, capsys):
    flags = ["-f", text, "-c", "64", "--protocol", "disjoint", "--device", "cpu", "-o",
             tmp_path / "r"]  # fmt: skip
    code, out, _ = run(capsys, "ppl", demo / "model", *flags, "--calibration", text)
    assert code == 0 and "NOT HELD OUT" in out
    (folder,) = (tmp_path / "r").iterdir()
    found = read_record(folder)["calibration"]
    assert found["share"] > 0.9 and found["source"] == str(text)
    # The audit looks again, and finds a share that was changed.
    code, out, _ = run(capsys, "check", folder, "--format", "json")
    assert code == 0
    record = json.loads((folder / "record.json").read_text())
    assert record["identity"]["calibration"]["sha256"] == found["source_sha256"]
    # Another run of the text without it is another run, and has the same scores.
    code, out, _ = run(capsys, "ppl", demo / "model", *flags)
    assert code == 0 and "HELD OUT" not in out
    one, two = (read_record(path) for path in (tmp_path / "r").iterdir())
    assert one["scores"]["sha256"] == two["scores"]["sha256"]
    code, out, _ = run(capsys, "card", folder)
    assert "--calibration text.txt" in out and "not held out" in out
