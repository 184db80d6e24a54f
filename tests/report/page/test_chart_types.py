"""Specs that Vega-Lite compiles without a word, whose marks are the rows given."""

import base64
import math
import re
import sys
import zlib

import numpy as np
import pytest
from support.report_data import FIGURES, report_data

from scoremode.errors import UsageError
from scoremode.report.page.chart_types import (
    SYMLOG,
    length_of,
    linear,
    logarithmic,
    packed,
    placed,
    plotting,
    scripts,
    share,
    signed,
)
from scoremode.report.page.comparison import FRONTIERS
from scoremode.report.page.figures import figures, identities, line_rows, own_rows
from scoremode.report.page.style import plot_config

vl_convert = pytest.importorskip("vl_convert")


def drawn(count: int) -> dict[str, str]:
    section = report_data(count)["sections"][0]
    who = identities(section)
    own = own_rows(section, who)
    found = {}
    for figure in figures(section, own):
        spec = next(iter(figure.choices.values()))
        name = spec["data"]["name"]
        rows = own[name] if name in own else line_rows(section, name, who)
        whole = spec | {"width": 500, "autosize": "pad", "datasets": {name: rows}}
        found[figure.name] = vl_convert.vegalite_to_svg(whole | {"config": plot_config()})
    return found


def test_every_run_is_a_mark_in_every_chart(capfd):
    charts = drawn(6)
    assert list(charts) == FIGURES
    for name, svg in charts.items():
        assert "NaN" not in svg and "Infinity" not in svg, name
        if name in FRONTIERS:
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


def test_many_decades_have_powers_of_ten_and_few_have_more():
    assert logarithmic([0.0002, 0.6]).ticks == (0.001, 0.01, 0.1)
    assert logarithmic([0.02, 0.3, None, 0.0]).ticks == (0.02, 0.05, 0.1, 0.2)
    assert len(logarithmic([1e-9, 1e9]).ticks) < 10
    assert logarithmic([None, 0.0]).ticks == ()


@pytest.mark.parametrize("values", [[0.011, 0.013], [1.0, 1.0], [3e-7, 2e-2], [0.5, 40.0]])
def test_ticks_of_a_logarithm_are_between_the_ends(values):
    axis = logarithmic(values)
    assert all(min(values) / 1.5 <= tick <= max(values) * 1.5 for tick in axis.ticks)


def test_percents_of_both_signs_are_around_0():
    axis = signed([-0.3, 54.7, 5_579_311.29])
    assert axis.ticks[:3] == (-0.1, 0.0, 0.1) and axis.ticks[-1] == 1e6
    assert 0.0 in signed([0.02, -0.01]).ticks and len(signed([0.02, -0.01]).ticks) > 2


def test_shares_are_those_of_the_scale():
    axis = logarithmic([0.01, 1.0])
    assert [share(axis, v) for v in (0.01, 0.1, 1.0)] == pytest.approx([0, 0.5, 1])
    both = signed([-5.0, 50.0])
    at = np.sign([-5.0, 7.0, 50.0]) * np.log1p(np.abs([-5.0, 7.0, 50.0]) / SYMLOG)
    assert share(both, 7.0) == pytest.approx((at[1] - at[0]) / (at[2] - at[0]))
    assert share(linear(), 7.0) == 0.5 and not math.isnan(share(logarithmic([2.0]), 2.0))


def box_of(place, point, name):
    (x, y), length = point, length_of(name)
    left = x + place["dx"] - {"left": 0, "center": length / 2, "right": length}[place["align"]]
    return left, y + place["dy"] - 6.5, left + length, y + place["dy"] + 6.5


def overlap(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_names_have_room_of_their_own_and_lie_on_no_line():
    random = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in random.uniform(0, 1, (25, 2)) * [430, 265]]
    names = [f"Q{i}_K_M" for i in range(25)]
    lines = [(x - 1, y - 30, x + 1, y + 30) for x, y in points]
    places = placed(points, names, 430, 265, lines)
    assert sum(place is None for place in places) <= 1
    boxes = [
        (box_of(place, point, name), i)
        for i, (place, point, name) in enumerate(zip(places, points, names, strict=True))
        if place is not None
    ]
    for n, (one, i) in enumerate(boxes):
        assert one[0] >= 0 and one[2] <= 430 and one[1] >= 0 and one[3] <= 265
        assert not any(overlap(one, other) for other, _ in boxes[n + 1 :])
        for j, (x, y) in enumerate(points):
            assert i == j or not overlap(one, (x - 5, y - 5, x + 5, y + 5))
    struck = [i for one, i in boxes if any(overlap(one, line) for line in lines)]
    assert len(struck) <= 2


def test_a_name_stands_beside_its_point_or_a_line_leads_to_it():
    def where(points, names, lines=()):
        return [
            place and (place["dx"], place["dy"], place["align"], place["led"])
            for place in placed(points, names, 430, 265, lines)
        ]

    assert where([(100, 100)], ["a"]) == [(8, 0, "left", False)]
    assert where([(425, 100)], ["name"]) == [(-8, 0, "right", False)]
    # The steps of a frontier.
    steps = [(98, 98, 300, 102), (298, 98, 302, 265)]
    assert where([(100, 100)], ["a"], steps) == [(-8, 0, "right", False)]
    # Behind a wall of others.
    wall = [(x, y) for x in (84, 100, 116) for y in (84, 100, 116) if (x, y) != (100, 100)]
    assert where([(100, 100), *wall], ["inside"] + [""] * 8)[0][3]
    assert where([(5, 100)] * 2, ["x" * 90] * 2) == [None] * 2
    # Where all is lines, one of them is interrupted.
    assert where([(100, 100)], ["a"], [(0, 0, 430, 265)]) == [(8, 0, "left", False)]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"pip install 'scoremode\[report\]'") as found:
        plotting()
    assert "\n" not in str(found.value)


def test_scripts_fit_an_element_and_are_the_same_twice():
    pytest.importorskip("vl_convert")
    made = scripts()
    assert zlib.decompress(base64.b64decode(packed(made))).decode() == made
    assert len(packed(made)) < 450_000
    assert "expressionInterpreter" in made and made == scripts()
