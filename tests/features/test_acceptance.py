"""Acceptance of drafts: total variation in every comparison, and with `--draft` at a temperature."""

import json

import numpy as np
import pytest
from support.programs import error_of, run

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.store import find_runs, read_scores


@pytest.fixture(scope="module")
def asked(demo, tmp_path_factory):
    quant = tmp_path_factory.mktemp("quant") / "W4A16-g32"
    quantize_folder(demo / "model", quant, next(v for v in VARIANTS if v.name == "W4A16-g32"))
    text = demo / "heldout.txt"
    return ["kld", str(quant), "--reference", str(demo / "model"), "-f", str(text), "-c", "64",
            "--protocol", "disjoint", "--limit", "6", "--device", "cpu"]  # fmt: skip


def test_a_draft_s_temperature_has_an_acceptance_of_its_own(asked, capsys, tmp_path):
    folder = ["-o", str(tmp_path)]
    code, out, err = run(capsys, *asked, *folder, "--draft", "0.5")
    assert code == 0, err
    lines = dict(
        line.split("  ", 1) for line in out.replace("  at", "at").splitlines() if "  " in line
    )
    assert "acceptance" in lines and "at temperature 0.5" in lines
    path, record = next(find_runs(tmp_path))
    against = read_scores(path).against
    assert against is not None and against.tv_draft is not None
    assert record["identity"]["draft"] == 0.5
    for name, column in (("acceptance", against.tv), ("acceptance_draft", against.tv_draft)):
        assert record["metrics"][name]["value"] == pytest.approx(1 - column.mean(), rel=1e-12)
    assert not np.array_equal(against.tv, against.tv_draft)
    assert record["metrics"]["tv"]["value"] == pytest.approx(against.tv.mean(), rel=1e-12)
    assert run(capsys, "check", str(path))[0] == 0
    # Another temperature is another run.
    assert run(capsys, *asked, *folder, "--draft", "0.7", "--resume")[0] == 0
    drafts = {record["identity"]["draft"] for _, record in find_runs(tmp_path)}
    assert drafts == {0.5, 0.7}


def test_at_temperature_one_it_is_the_acceptance(asked, capsys, tmp_path):
    code, out, err = run(capsys, *asked, "-o", str(tmp_path), "--draft", "1", "--json")
    assert code == 0, err
    metrics = json.loads(out)["metrics"]
    assert metrics["acceptance_draft"]["value"] == metrics["acceptance"]["value"]


@pytest.mark.parametrize(
    ("given", "words"),
    [("0", "greedy"), ("-1", "above 0"), ("inf", "above 0"), ("1e-40", "1e-6 to 1e6")],
)
def test_what_is_no_temperature_is_one_line(asked, capsys, given, words):
    code, out, err = run(capsys, *asked, f"--draft={given}")
    assert code == 2 and out == "" and words in error_of(err)


def test_a_gate_on_acceptance_fails_a_build(asked, capsys, tmp_path):
    code, _, err = run(capsys, *asked, "-o", str(tmp_path), "--min-acceptance", "99.99%")
    assert code == 4 and "--min-acceptance 99.99%" in err
