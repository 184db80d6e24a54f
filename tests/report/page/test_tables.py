"""Tables hold the report's numbers."""

import pytest
from support.report_data import report_data

from scoremode.report.page import tables
from scoremode.report.page.figures import identities, quants
from scoremode.results.statistics.verdict import Verdict


@pytest.fixture
def section():
    return report_data(4)["sections"][0]


def test_the_ranking_has_whole_numbers_behind_rounded_ones(section):
    made = tables.ranking_table(section, identities(section), "t")
    rows = [row.cells for row in made.rows]
    assert [len(row) for row in rows] == [len(made.heads)] * 5 and "(base)" in rows[0][1].text
    for rank, (row, run) in enumerate(zip(rows[1:], section["runs"], strict=True), 1):
        assert row[0].text == str(rank) and row[1].text == run["name"]
        assert float(row[3].attributes["data-value"]) == run["bytes"]
        for place, key in (
            (2, "kld"),
            (7, "kld_p999"),
            (8, "top1"),
            (9, "acceptance"),
            (10, "ppl"),
            (11, "ppl_ratio"),
        ):
            assert float(row[place].attributes["data-value"]) == run[key]["value"]
            assert row[place].attributes["data-copy"].endswith("]")


def test_a_matrix_is_antisymmetric(section):
    matrix = section["matrices"][0]
    matrix["pairs"][-1]["verdict"] = "not distinguishable"
    rows = [row.cells for row in tables.matrix_table(matrix, identities(section), "t").rows]
    said = [[cell.text for cell in row[1:]] for row in rows]
    for i in range(4):
        assert said[i][i] == ""
        for j in range(i):
            swapped = said[j][i].translate(str.maketrans("+−", "−+"))
            assert said[i][j] == swapped
    assert said[3][2] == said[2][3] == "·"
    first = rows[0][2].attributes
    assert "Holm" in first["title"] and first["class"] == "better"


def test_groups_are_deeper_the_further_above_the_mean(section):
    chart = next(c for c in section["charts"] if c["id"] == "group:token_class")
    made = tables.groups_table(chart, quants(section), identities(section), "t")
    assert made.heads[2].startswith("bin 0 (10.0 %)")
    first = made.rows[0].cells[2:]
    kinds = [int(cell.attributes["class"][1:]) for cell in first]
    assert kinds == sorted(kinds, reverse=True) and kinds[0] > kinds[-1]
    assert [float(cell.attributes["data-value"]) for cell in first] == chart["series"][0]["y"]


def test_tied_runs_have_the_ranks_that_they_may_have_and_their_verdicts(section):
    verdict = Verdict("kld", "nats", False, 0.01, 0.02, (0.019, 0.021), 9, "worse", by=0.019)
    for run in section["runs"][:2]:
        run |= {"ranks": (1, 2), "verdicts": [verdict.to_json()]}
    table = tables.ranking_table(section, identities(section), "t")
    assert table.heads[2:4] == ["mean KLD (nats)", "beside the base"]
    assert [row.cells[0].text for row in table.rows] == ["–", "1–2", "1–2", "3", "4"]
    words = "worse by ≥0.019 nats"
    assert [row.cells[3].text for row in table.rows] == ["–", words, words, "–", "–"]
