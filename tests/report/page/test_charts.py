"""Specs that Vega-Lite compiles without a word, whose marks are the rows given."""

import re

import pytest
from support.report_data import report_data

from scoremode.report.page.chart_rows import identities, lines, own_rows
from scoremode.report.page.figures import figures
from scoremode.report.page.theme import plot_config

vl_convert = pytest.importorskip("vl_convert")


def drawn(count: int) -> dict[str, str]:
    section = report_data(count)["sections"][0]
    who = identities(section)
    own = own_rows(section, who)
    found = {}
    for figure in figures(section, own):
        spec = next(iter(figure.choices.values()))
        name = spec["data"]["name"]
        rows = own[name] if name in own else lines(section, name, who)
        whole = spec | {"width": 500, "autosize": "pad", "datasets": {name: rows}}
        found[figure.name] = vl_convert.vegalite_to_svg(whole | {"config": plot_config()})
    return found


def test_every_run_is_a_mark_in_every_chart(capfd):
    charts = drawn(6)
    assert list(charts) == [
        "kld",
        "ppl_ratio",
        "kld_p999",
        "percentiles",
        "tail",
        "confidence",
        "position",
    ]
    for name, svg in charts.items():
        assert "NaN" not in svg and "Infinity" not in svg, name
        if name in ("kld", "ppl_ratio", "kld_p999"):
            groups = re.findall(r'<g class="mark-symbol role-mark[^>]*>(.*?)</g>', svg, re.S)
            assert max(group.count("<path") for group in groups) == 6
        elif name != "percentiles":
            assert svg.count('<g class="mark-line role-mark') >= 6 or svg.count("mark-line") >= 1
    assert charts["percentiles"].count("<path") >= 6 * 5
    assert "WARN" not in "".join(capfd.readouterr())


def test_names_stand_beside_their_points():
    svg = drawn(6)["kld"]
    names = [run["name"] for run in report_data(6)["sections"][0]["runs"]]
    assert all(f">{name}<" in svg for name in names)
