"""`scoremode report` as a user meets it."""

import sys

import pytest
from support.programs import error_of, run
from support.run_folders import NOISE, scores_of, write_run

import scoremode


@pytest.fixture
def runs(tmp_path):
    return [str(write_run(tmp_path / name, scores_of(noise))) for name, noise in NOISE.items()]


def test_it_prints_what_it_wrote(capsys, runs, tmp_path):
    pytest.importorskip("vl_convert")
    output, plots = tmp_path / "out.html", tmp_path / "plots"
    code, out, err = run(capsys, "report", *runs, "-o", str(output), "--plots", str(plots))
    assert code == 0 and err == ""
    first, second = out.splitlines()
    assert first == str(output) and output.read_text().startswith("<!doctype html>")
    assert second == f"{plots}: {len(list(plots.iterdir()))} files, SVG and PNG"
    page = scoremode.write_report(runs, tmp_path / "python.html")
    assert page == tmp_path / "python.html" and page.stat().st_size > 400_000
    assert "<h1>Quants of base on made.txt</h1>" in page.read_text()


def test_it_has_the_title_that_is_given(capsys, runs, tmp_path):
    pytest.importorskip("vl_convert")
    output = tmp_path / "out.html"
    assert run(capsys, "report", *runs, "-o", str(output), "--title", "<b>Mine")[0] == 0
    text = output.read_text()
    assert "<title>&lt;b&gt;Mine · scoremode</title>" in text and "<h1>&lt;b&gt;Mine</h1>" in text
    code, _, err = run(capsys, "report", *runs, "-o", str(output), "--title", "a\nb")
    assert code == 2 and "--title: 'a\\nb' has characters that can't be printed" in err
    with pytest.raises(scoremode.UsageError, match="'' is empty"):
        scoremode.write_report(runs, output, title="")


def test_what_cannot_be_reported_is_one_line(capsys, runs, tmp_path, monkeypatch):
    pytest.importorskip("vl_convert")
    code, _, err = run(capsys, "report", str(tmp_path / "missing"), "-o", str(tmp_path / "o.html"))
    assert code != 0 and "missing" in err and not (tmp_path / "o.html").exists()
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "report", *runs, "--plots", str(tmp_path / "file"))
    assert code != 0 and "not a folder" in error_of(err)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, _, err = run(capsys, "report", *runs, "-o", str(tmp_path / "o.html"))
    assert code == 2 and "pip install 'scoremode[report]'" in error_of(err)
