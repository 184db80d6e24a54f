"""The sentence says what the numbers say."""

import copy

from support.report_data import report_data

from scoremode.report.page.finding import finding


def section(count=5):
    return copy.deepcopy(report_data(count)["sections"][0])


def test_the_closest_is_named_with_its_numbers():
    made = section()
    first = made["runs"][0]
    words = finding(made)
    assert words.startswith(f"{first['name']} is the closest to the base: mean KLD")
    assert f"{first['kld']['value']:.3g}" in words


def test_the_frontier_is_counted():
    made = section()
    frontier = next(f for f in made["frontiers"] if f["id"] == "bits_file/kld")
    beaten = frontier["line"].pop(1)
    names = {run["id"]: run["name"] for run in made["runs"]}
    words = finding(made)
    assert f"{len(frontier['line'])} of 5 lie on the frontier" in words
    assert names[beaten] not in words.split("frontier")[1]
    frontier["line"][:] = [point["run"] for point in frontier["points"]]
    assert "All lie on the frontier" in finding(made)


def test_who_cannot_be_told_apart_is_said():
    made = section()
    assert "told apart" not in finding(made)
    pair = made["matrices"][0]["pairs"][0]
    pair["verdict"] = "not distinguishable"
    names = {run["id"]: run["name"] for run in made["runs"]}
    assert f"can't be told apart from {names[pair['b']]}" in finding(made)


def test_one_run_none_and_no_base():
    assert "against its base: mean KLD" in finding(section(1))
    exact = section(1)
    exact["runs"][0]["kld"] |= {"value": 0.0, "lower": 0.0, "upper": 0.0}
    assert "exactly what its base does" in finding(exact)
    alone = section(1)
    alone["runs"][0]["is_base"] = True
    assert finding(alone) == "Only the base itself was measured."
    made = section(3)
    made["ranked_by"] = "ppl"
    assert "the lowest perplexity: " in finding(made) and "KLD" not in finding(made)
