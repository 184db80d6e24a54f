"""Rows are the report's numbers, with each run's place in the charts."""

import copy

from support.report_data import report_data

from scoremode.report.page.chart_rows import frontier_rows, identities, lines, own_rows
from scoremode.report.page.theme import TINTS


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
            assert row["ahead"] == (row["id"] in frontier["line"]) and row["wide"] and row["narrow"]


def test_a_kld_of_0_has_no_place_on_a_logarithm():
    section = copy.deepcopy(report_data(3)["sections"][0])
    frontier = next(f for f in section["frontiers"] if f["id"] == "bytes/kld")
    frontier["points"][0] |= {"y": 0.0, "lower": 0.0, "upper": 0.0}
    assert len(frontier_rows(section, frontier, identities(section))) == 2


def test_lines_stay_arrays_and_percentiles_are_the_runs():
    section = report_data(4)["sections"][0]
    who = identities(section)
    rows = lines(section, "tail", who)
    assert [row["id"] for row in rows] == [run["id"] for run in section["runs"]]
    assert rows[0]["x"] == section["tail"][0]["x"]
    assert lines(section, "confidence", who)[0]["y"] == section["charts"][0]["series"][0]["y"]
    values = [row["value"] for row in own_rows(section, who)["percentiles"] if row["id"] == "r0"]
    run = section["runs"][0]
    keys = ("kld_median", "kld", "kld_p99", "kld_p999")
    assert values == [*(run[key]["value"] for key in keys), run["kld_max"]]


def test_long_names_keep_their_ends():
    section = report_data(3, long=True)["sections"][0]
    for one in identities(section).values():
        assert len(one["short"]) <= 30 and one["name"].endswith(one["short"].split("…")[1])
