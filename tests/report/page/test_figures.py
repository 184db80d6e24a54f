"""Which figures a section has, and what they say of the base."""

import copy
import struct
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from support.report_data import FIGURES, report_data

from scoremode.errors import RunFolderError
from scoremode.report.page.chart_types import length_of, share
from scoremode.report.page.figures import (
    axis_of,
    figures,
    frontier_rows,
    identities,
    line_rows,
    own_rows,
    write_plots,
)
from scoremode.report.page.style import TINTS


def made(section):
    return {one.name: one for one in figures(section, own_rows(section, identities(section)))}


def test_sizes_are_choices_of_one_figure():
    found = made(report_data(6)["sections"][0])
    assert list(found["kld"].choices) == ["bits/weight, file", "bits/weight, layers", "GiB"]
    assert list(found["tail"].choices) == [""]
    # Groups without an order are tables.
    assert "group:token_class" not in found


def test_a_base_far_off_is_told_and_a_near_one_drawn():
    section = copy.deepcopy(report_data(6)["sections"][0])
    assert "lies off to the right" in made(section)["kld"].caption
    for frontier in section["frontiers"]:
        frontier["base"] = (max(point["x"] for point in frontier["points"]) * 1.2, 0.0)
    near = made(section)["kld"]
    assert "off to the right" not in near.caption
    assert any("values" in layer.get("data", {}) for layer in near.choices["GiB"]["layer"])


def test_without_a_base_there_is_what_there_is():
    section = copy.deepcopy(report_data(3)["sections"][0])
    section |= {"frontiers": [], "tail": [], "charts": []}
    for run in section["runs"]:
        for key in ("kld", "kld_median", "kld_p99", "kld_p999", "kld_max"):
            run[key] = None
    assert made(section) == {}


def test_a_run_at_0_which_a_logarithm_has_no_place_for_is_told():
    """Without a word on a lossless conversion those that it beats would look like the best."""
    section = copy.deepcopy(report_data(3)["sections"][0])
    exact = section["runs"][0]
    for key in ("kld", "kld_median", "kld_p99", "kld_p999"):
        exact[key] |= {"value": 0.0, "lower": 0.0, "upper": 0.0}
    exact["kld_max"] = 0.0
    for frontier in section["frontiers"]:
        for point in frontier["points"]:
            if point["run"] == exact["id"] and not frontier["id"].endswith("/ppl_ratio"):
                point |= {"y": 0.0, "lower": 0.0, "upper": 0.0}
    said = f" Not drawn, since the scale has no 0: {exact['name']}, at 0."
    found = made(section)
    for name in ("kld", "kld_p999", "percentiles"):
        assert found[name].caption.endswith(said), name
    assert "Not drawn" not in found["ppl_ratio"].caption
    # With nothing but such runs there is no chart to be empty.
    section["runs"] = [exact]
    for frontier in section["frontiers"]:
        frontier["points"] = [p for p in frontier["points"] if p["run"] == exact["id"]]
    assert not {"kld", "kld_p999", "percentiles"} & made(section).keys()


def test_few_runs_have_tints_of_their_own_and_many_have_those_on_the_frontier():
    section = report_data(7)["sections"][0]
    assert sorted(one["tint"] for one in identities(section).values()) == list(range(7))
    many = report_data(20)["sections"][0]
    who = identities(many)
    ahead = next(f for f in many["frontiers"] if f["id"] == "bits_file/kld")["line"]
    tinted = {run for run, one in who.items() if one["tint"] < len(TINTS) - 1}
    assert tinted <= set(ahead) and len(tinted) == min(7, len(ahead))
    assert many["runs"][0]["id"] in tinted


def test_rows_of_a_frontier_are_its_points():
    section = report_data(6)["sections"][0]
    who, runs = identities(section), {run["id"]: run for run in section["runs"]}
    for frontier in section["frontiers"]:
        size, of = frontier["id"].split("/")
        for row in frontier_rows(section, frontier, who):
            run = runs[row["id"]]
            value = run[of]["value"]
            expected = 100 * (value - 1) if of == "ppl_ratio" else value
            assert abs(row["y"] - expected) <= 1e-6 * abs(expected) + 1e-12
            # 6 quants of a model of 135 million weights: an axis in GiB.
            assert row["x"] == (run[size] / 2**30 if size == "bytes" else run[size])
            assert row["ahead"] == (row["id"] in frontier["line"])
            assert all(row[room] is not None for room in ("wide", "narrow", "file"))


def test_a_kld_of_0_has_no_place_on_a_logarithm():
    section = copy.deepcopy(report_data(3)["sections"][0])
    frontier = next(f for f in section["frontiers"] if f["id"] == "bytes/kld")
    frontier["points"][0] |= {"y": 0.0, "lower": 0.0, "upper": 0.0}
    assert len(frontier_rows(section, frontier, identities(section))) == 2


def test_lines_stay_arrays_and_percentiles_are_the_runs():
    section = report_data(4)["sections"][0]
    who = identities(section)
    rows = line_rows(section, "tail", who)
    assert [row["id"] for row in rows] == [run["id"] for run in section["runs"]]
    assert rows[0]["x"] == section["tail"][0]["x"]
    chart = next(chart for chart in section["charts"] if chart["id"] == "confidence")
    assert line_rows(section, "confidence", who)[0]["y"] == chart["series"][0]["y"]
    values = [row["value"] for row in own_rows(section, who)["percentiles"] if row["id"] == "r0"]
    run = section["runs"][0]
    keys = ("kld_median", "kld", "kld_p99", "kld_p999")
    assert values == [*(run[key]["value"] for key in keys), run["kld_max"]]


def test_long_names_keep_their_ends():
    section = report_data(3, long=True)["sections"][0]
    for one in identities(section).values():
        assert len(one["short"]) <= 30 and one["name"].endswith(one["short"].split("…")[1])


@pytest.mark.parametrize("count", [1, 5, 14])
def test_in_a_plot_each_run_has_its_name_and_no_line_goes_through_one(count):
    section = report_data(count)["sections"][0]
    for frontier in section["frontiers"]:
        rows = frontier_rows(section, frontier, identities(section))
        assert all(row["file"] is not None for row in rows)
        of = frontier["id"].split("/")[1]
        low, most = min(row["x"] for row in rows), max(row["x"] for row in rows)
        at = [
            (16 + 488 * ((row["x"] - low) / (most - low) if most > low else 0.5),
             10 + 290 * (1 - share(axis_of(rows, of), row["y"])))
            for row in rows
        ]  # fmt: skip
        steps = sorted(p for p, row in zip(at, rows, strict=True) if row["ahead"])
        lines = [(x, y, right, y) for (x, y), (right, _) in pairwise(steps)]
        lines += [(right, y, right, below) for (_, y), (right, below) in pairwise(steps)]
        for (x, y), row in zip(at, rows, strict=True):
            place, length = row["file"], length_of(row["short"])
            left = x + place["dx"]
            left -= {"left": 0, "center": length / 2, "right": length}[place["align"]]
            top = y + place["dy"] - 6
            assert not any(
                a < left + length and left < c and b < top + 12 and top < d for a, b, c, d in lines
            ), row["short"]


pytest.importorskip("vl_convert")


def test_a_plot_says_of_what_it_is_wherever_it_is_shown(tmp_path):
    report = copy.deepcopy(report_data(4))
    section = report["sections"][0]
    section["base"]["name"], section["text_name"] = "SmolLM2 <base>", "WikiText-2"
    report["title"] = "Ours & theirs " * 9
    write_plots(report, tmp_path)
    for file in tmp_path.glob("*.svg"):
        words = [*ElementTree.parse(file).getroot().itertext()]
        assert "Quants of SmolLM2 <base> on WikiText-2" in words
        assert f"protocol {section['protocol_words']}" in words
        # Long, in two lines.
        assert sum(line.startswith("Ours & theirs ") for line in words) == 2
        assert any(figure.title in words for figure in made(section).values())


def test_each_chart_is_there_as_svg_and_png_and_as_svg_for_dark_pages(tmp_path):
    files = write_plots(report_data(9), tmp_path / "new" / "plots")
    assert sorted(files) == sorted((tmp_path / "new" / "plots").iterdir()) and len(files) == 3 * (
        2 * 3 + len(FIGURES)
    )
    for file in files:
        if file.suffix == ".svg":
            root = ElementTree.parse(file).getroot()
            light = file.with_name(file.name.replace("-dark", ""))
            header = light.with_suffix(".png").read_bytes()[:24]
            paper = "#14171a" if "-dark" in file.name else "#ffffff"
            assert f'fill="{paper}"' in file.read_text()
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
