"""From run folders to files."""

import sys

import pytest
from support.run_folders import NOISE, scores_of, write_run

from scoremode.errors import UsageError
from scoremode.report.page.make import write_report


@pytest.fixture
def runs(tmp_path):
    for name, noise in NOISE.items():
        write_run(tmp_path / "runs" / name, scores_of(noise))
    return tmp_path / "runs"


def test_a_folder_of_runs_becomes_a_page_and_plots(runs, tmp_path):
    pytest.importorskip("vl_convert")
    output = tmp_path / "report.html"
    command = ["scoremode", "report", "runs"]
    files = write_report([runs], output, tmp_path / "plots", command=command)
    assert files[0] == output and set(files[1:]) == set((tmp_path / "plots").iterdir())
    page = output.read_text()
    assert all(name in page for name in NOISE) and "scoremode report runs" in page
    write_report([runs], tmp_path / "again.html", command=command)
    assert (tmp_path / "again.html").read_text() == page


def test_without_the_extra_nothing_is_read_or_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match="scoremode"):
        write_report([tmp_path / "none"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
