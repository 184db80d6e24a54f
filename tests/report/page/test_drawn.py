"""What holds for every chart, whatever it shows."""

import itertools


def test_arrays_are_as_long_as_their_chart(made_report):
    section = made_report.section
    for chart in section["charts"]:
        assert {s["run"] for s in chart["series"]} == {made_report.id_of(n) for n in "abcde"}
        for series in chart["series"]:
            lengths = {len(series[name]) for name in ("x", "y", "lower", "upper", "n")}
            assert lengths == {len(chart["bins"])}
    for tail in section["tail"]:
        lengths = {len(tail[name]) for name in ("x", "y", "lower", "upper", "n")}
        assert len(lengths) == 1 and lengths.pop() <= 200


def test_an_interval_holds_its_value(made_report):
    section = made_report.section
    series = [s for chart in section["charts"] for s in chart["series"]] + section["tail"]
    points = [p for s in series for p in zip(s["lower"], s["y"], s["upper"], strict=True)]
    known = [p for p in points if None not in p]
    assert len(known) > 100
    assert all(
        low <= value * (1 + 1e-6) and value <= high * (1 + 1e-6) for low, value, high in known
    )


def test_ids_name_runs_and_charts_once(made_report):
    section = made_report.section
    runs = {run["id"] for run in section["runs"]}
    named = [p["run"] for f in section["frontiers"] for p in f["points"]]
    named += [id_ for f in section["frontiers"] for p in f["points"] for id_ in p["by"]]
    named += [id_ for matrix in section["matrices"] for id_ in matrix["order"]]
    named += list(itertools.chain(*(target["runs"] for target in section["worst"])))
    assert set(named) <= runs
    ids = [chart["id"] for chart in (*section["charts"], *section["frontiers"])]
    assert len(set(ids)) == len(ids) == 3 + 1 + 2 + 9
