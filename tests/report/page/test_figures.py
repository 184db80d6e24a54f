"""Which figures a section has, and what they say of the base."""

import copy

from support.report_data import report_data

from scoremode.report.page.chart_rows import identities, own_rows
from scoremode.report.page.figures import figures


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
