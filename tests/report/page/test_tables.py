"""Tables hold the report's numbers, read back by a parser of HTML."""

from html.parser import HTMLParser

import pytest
from support.report_data import report_data

from scoremode.report.page import tables
from scoremode.report.page.figures import identities, quants


class Cells(HTMLParser):
    """Rows of (tag, attributes, text)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.depth = [], 0

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append([tag, dict(attrs), ""])

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1][2] += data


def cells(markup: str):
    parser = Cells()
    parser.feed(markup)
    return parser.rows


@pytest.fixture
def section():
    return report_data(4)["sections"][0]


def test_the_ranking_has_whole_numbers_behind_rounded_ones(section):
    rows = cells(tables.ranking_table(section, identities(section), "t"))
    assert [len(row) for row in rows] == [11] * 6 and "(base)" in rows[1][1][2]
    for rank, (row, run) in enumerate(zip(rows[2:], section["runs"], strict=True), 1):
        assert row[0][2] == str(rank) and row[1][2] == run["name"]
        assert float(row[3][1]["data-value"]) == run["bytes"]
        for place, key in ((2, "kld"), (7, "kld_p999"), (8, "top1"), (9, "ppl"), (10, "ppl_ratio")):
            assert float(row[place][1]["data-value"]) == run[key]["value"]
            assert row[place][1]["data-copy"].endswith("]")


def test_a_matrix_is_antisymmetric(section):
    matrix = section["matrices"][0]
    matrix["pairs"][-1]["verdict"] = "not distinguishable"
    rows = cells(tables.matrix_table(matrix, identities(section), "t"))[1:]
    said = [[cell[2].strip() for cell in row[1:]] for row in rows]
    for i in range(4):
        assert said[i][i] == ""
        for j in range(i):
            swapped = said[j][i].translate(str.maketrans("+−", "−+"))
            assert said[i][j] == swapped
    assert said[3][2] == said[2][3] == "·"
    assert "Holm" in rows[0][2][1]["title"] and rows[0][2][1]["class"] == "better"


def test_groups_are_deeper_the_further_above_the_mean(section):
    chart = next(c for c in section["charts"] if c["id"] == "group:token_class")
    rows = cells(tables.groups_table(chart, quants(section), identities(section), "t"))
    assert rows[0][2][2].startswith("word start (16.7 %)")
    kinds = [int(cell[1]["class"][1:]) for cell in rows[1][2:]]
    assert kinds == sorted(kinds, reverse=True) and kinds[0] > kinds[-1]
    values = [float(cell[1]["data-value"]) for cell in rows[1][2:]]
    assert values == chart["series"][0]["y"]


def test_the_worst_stand_side_by_side(section):
    rows = cells(tables.worst_table(section, identities(section), "t"))
    first = section["worst"][0]
    assert len(rows) == 7 and len(rows[1]) == 2 + 4
    assert "<script>alert(1)</script>" in rows[1][0][2] and "window 0, position 17" in rows[1][0][2]
    assert f"KLD {first['kld'][0]:.3g}" in rows[1][2][2]
    section["worst"][0]["runs"] = first["runs"][:2]
    section["worst"][0]["top1"][0]["text"] = None
    again = cells(tables.worst_table(section, identities(section), "t"))
    assert again[1][4][2] == "–" and again[1][2][2].startswith("id 7")
