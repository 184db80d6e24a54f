"""A section: its heading where there are several, its charts by their places."""

from support.report_data import report_data

from scoremode.report.page.finding import finding
from scoremode.report.page.markup import text
from scoremode.report.page.parts import section_part


def test_each_place_of_a_chart_has_its_specs():
    section = report_data(6)["sections"][0]
    part = section_part(section, alone=True)
    for name, specs in part.charts.items():
        assert f'data-chart="{name}"' in part.html and specs
    assert part.html.count('class="chart"') == len(part.charts) == 7
    assert "<h2" not in part.html and text(finding(section)) not in part.html


def test_one_of_several_has_a_heading_and_its_finding():
    section = report_data(6, sections=2)["sections"][1]
    part = section_part(section, alone=False)
    assert '<h2 id="s1">' in part.html and text(finding(section)) in part.html
    assert "Note: runs/old has no hashes" in part.html


def test_greys_are_explained_where_there_are_some():
    words = "In colour: the closest on the frontier"
    assert words not in section_part(report_data(7)["sections"][0], alone=True).html
    assert words in section_part(report_data(8)["sections"][0], alone=True).html
