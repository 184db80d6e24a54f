"""`scoremode demo` as a user meets it."""

import json
import sys
import tempfile

import pytest
from support.programs import run
from support.run_folders import NOISE, scores_of, write_run

from scoremode.demo.quantize import VARIANTS


def test_demo_shows_an_order_from_4_bits_down(capsys, tmp_path, monkeypatch):
    few = [v for v in VARIANTS if v.name in ("W8A16", "W4A16-g32", "W4A16-channel")]
    monkeypatch.setattr("scoremode.demo.variants.VARIANTS", few)
    code, out, err = run(capsys, "demo", "--json", "-o", str(tmp_path / "demo"))
    # Without a terminal it says nothing, nor does a library: transformers has bars of its own.
    assert code == 0 and err == ""
    records = json.loads(out)
    ppl = {name: r["metrics"]["ppl"] for name, r in records.items()}
    assert ppl["dense"]["value"] < ppl["W4A16-g32"]["value"] < ppl["W4A16-channel"]["value"]
    assert abs(ppl["W8A16"]["value"] / ppl["dense"]["value"] - 1) < 0.002
    assert all(m["ci95"][0] < m["value"] < m["ci95"][1] for m in ppl.values())
    assert len({r["plan"]["sha256"] for r in records.values()}) == 1
    code, _, err = run(capsys, "demo", "-o", str(tmp_path / "demo"))
    assert code == 2 and "is there already" in err


def test_it_ends_with_the_path_of_its_report_or_with_what_to_install(capsys, tmp_path, monkeypatch):
    from pathlib import Path

    from scoremode.cli import demo as command
    from scoremode.cli.screen import Screen, Session
    from scoremode.startup.clock import StageClock

    pytest.importorskip("vl_convert")
    for name, noise in NOISE.items():
        write_run(tmp_path / "runs" / name, scores_of(noise))
    session = Session(("scoremode", "demo"), Screen(sys.stderr, hidden=True), StageClock())
    said = command._report(session, tmp_path / "runs", tmp_path, "table")
    assert said == str(tmp_path / "report.html") and "W4A16" in Path(said).read_text()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "runs"))
    elsewhere = command._report(session, tmp_path / "runs", None, "table")
    assert Path(elsewhere).parent.name.startswith("scoremode-demo-report-")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    words = command._report(session, tmp_path / "runs", tmp_path, "table")
    assert "pip install 'scoremode[report]'" in words
    assert command._report(session, tmp_path / "runs", tmp_path, "json") is None
