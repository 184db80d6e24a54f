"""`scoremode reference` as a user meets it; its exports are in `tests/llama_cpp`."""

import json

import pytest
from support.programs import run

from scoremode.results.folders.store import read_record


@pytest.fixture(scope="module")
def asked(demo) -> list[str]:
    text = "The same value is computed once and the result is used again. " * 20
    flags = ["--protocol", "disjoint", "-c", "32", "--device", "cpu"]
    return ["reference", str(demo / "model"), "--text", text, *flags]


def test_the_table_says_what_was_kept_and_where(asked, demo, capsys, tmp_path):
    code, out, err = run(capsys, *asked, "-o", str(tmp_path / "ref"), "--head", "checkpoint")
    assert (code, err) == (0, "") and out.startswith("PPL ")
    kept = read_record(tmp_path / "ref")["kept"]
    rows = dict(line.split("  ", 1) for line in out.split("\n\n")[1].splitlines())
    assert rows["states"].strip().startswith(f"{kept['states']['rows']:,} of ")
    assert rows["head"].endswith(f"left in {demo / 'model'}")
    assert rows["reference"].strip() == str(tmp_path / "ref")
    assert run(capsys, "show", str(tmp_path / "ref"))[1] == out


def test_json_is_the_record_and_a_kept_one_is_no_model(asked, capsys, tmp_path):
    folder = str(tmp_path / "ref")
    code, out, _ = run(capsys, *asked, "-o", folder, "--json")
    assert code == 0 and json.loads(out) == read_record(tmp_path / "ref")
    code, out, err = run(capsys, "reference", folder, "-o", str(tmp_path / "other"))
    assert (code, out) == (2, "")
    assert err.endswith(
        f"{folder}: is a run already: --export-llama-cpp FILE exports a reference\n"
    )


def test_it_has_a_folder_of_its_own(asked, capsys):
    code, out, err = run(capsys, *asked)
    assert (code, out, err) == (2, "", "scoremode: error: no folder to write to: give -o DIR\n")
