"""Charts as files: SVG, and PNG of twice the size, the same twice."""

import struct
import xml.etree.ElementTree as ElementTree

import pytest
from support.report_data import report_data

from scoremode.errors import RunFolderError
from scoremode.report.page.plots import write_plots

pytest.importorskip("vl_convert")


def test_each_chart_is_there_twice_and_in_the_light_theme(tmp_path):
    files = write_plots(report_data(9), tmp_path / "new" / "plots")
    assert sorted(files) == sorted((tmp_path / "new" / "plots").iterdir()) and len(files) == 26
    for file in files:
        if file.suffix == ".svg":
            root = ElementTree.parse(file).getroot()
            header = file.with_suffix(".png").read_bytes()[:24]
            width, height = struct.unpack(">II", header[16:])
            assert abs(width - 2 * float(root.get("width"))) <= 2
            assert abs(height - 2 * float(root.get("height"))) <= 2
            assert "var(--" not in file.read_text() and "NaN" not in file.read_text()


def test_lines_have_a_legend_and_points_their_names(tmp_path):
    report = report_data(9)
    write_plots(report, tmp_path)
    tail, kld = ((tmp_path / f"{name}.svg").read_text() for name in ("tail", "kld-gib"))
    assert "role-legend" in tail and ">others<" in tail and "role-legend" not in kld
    assert f">{report['sections'][0]['runs'][0]['name']}<" in tail


def test_files_of_two_sections_have_names_of_their_own_and_are_the_same_twice(tmp_path):
    report = report_data(2, sections=2)
    one = write_plots(report, tmp_path / "one")
    two = write_plots(report, tmp_path / "two")
    assert {f.name for f in one} >= {"s0-tail.png", "s1-tail.png"}
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two, strict=True))


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_plots(report_data(1), tmp_path / "file")
