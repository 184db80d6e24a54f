"""Frontiers: by hand, by brute force, and what tests leave of them."""

from typing import Any

import numpy as np

from scoremode.report.page.gathered.frontiers import frontiers


def run(id_: str, size: float | None, kld: float | None, half: float | None = None) -> Any:
    def metric(value):
        ends = (None, None) if half is None or value is None else (value - half, value + half)
        return None if value is None else {"value": value, "lower": ends[0], "upper": ends[1]}

    return {
        "id": id_, "is_base": False, "bytes": size, "bits_body": None, "bits_file": None,
        "kld": metric(kld), "kld_p999": metric(kld), "ppl_ratio": None, "ppl": metric(kld),
    }  # fmt: skip


BASE: Any = {"bytes": 100, "bits_body": 16.0, "bits_file": None}


def matrix(same: set[tuple[str, str]], runs: list[Any]) -> Any:
    pairs = [
        {"a": a["id"], "b": b["id"],
         "verdict": "not distinguishable" if (a["id"], b["id"]) in same
         else "lower" if a["kld"]["value"] < b["kld"]["value"] else "higher"}
        for i, a in enumerate(runs) for b in runs[i + 1 :]
    ]  # fmt: skip
    return {"of": "kld", "pairs": pairs}


def points(found: Any) -> dict[str, Any]:
    return {point["run"]: point for point in found["points"]}


def test_by_hand():
    runs = [run("small", 1, 0.9), run("mid", 2, 0.1), run("bad", 3, 0.5), run("luck", 2.5, 0.11)]
    kld, p999 = frontiers(runs, BASE, [matrix({("mid", "luck")}, runs)])
    at = points(kld)
    assert (kld["id"], p999["id"]) == ("bytes/kld", "bytes/kld_p999")
    assert kld["line"] == ["small", "mid"] and [p["x"] for p in kld["points"]] == [1, 2, 2.5, 3]
    assert at["bad"]["standing"] == "beaten" and at["bad"]["by"] == ["mid", "luck"]
    assert at["luck"]["standing"] == "not distinguishable" and at["luck"]["by"] == ["mid"]
    assert at["luck"]["same_as"] == ["mid"] and at["mid"]["same_as"] == []
    assert kld["base"] == (100, 0.0) and kld["y"]["scale"] == "log" and kld["tested"] == "kld"
    # Percentiles without intervals: nothing tells.
    assert points(p999)["bad"]["standing"] == "not known" and points(p999)["bad"]["same_as"] is None


def test_a_frontier_run_whose_bytes_buy_nothing_says_so():
    runs = [run("small", 1, 0.100), run("large", 5, 0.099)]
    at = points(frontiers(runs, BASE, [matrix({("small", "large")}, runs)])[0])
    assert at["large"]["standing"] == "frontier" and at["large"]["same_as"] == ["small"]


def test_equals_are_both_on_it_and_of_equal_quality_the_smaller_one():
    runs = [run("a", 1, 0.5), run("b", 1, 0.5), run("c", 2, 0.5)]
    found = frontiers(runs, BASE, [matrix({("a", "b"), ("a", "c"), ("b", "c")}, runs)])[0]
    assert found["line"] == ["a", "b"]
    assert points(found)["c"]["by"] == ["a", "b"]
    assert points(found)["c"]["standing"] == "not distinguishable"


def test_intervals_tell_where_no_test_does():
    runs = [run("a", 1, 0.5, 0.1), run("b", 2, 0.8, 0.1), run("c", 3, 0.65, 0.1)]
    at = points(frontiers(runs, BASE, [])[1])
    assert (at["b"]["standing"], at["c"]["standing"]) == ("beaten", "not distinguishable")


def test_any_runs_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(50):
        runs = [
            run(str(i), float(x), float(y))
            for i, (x, y) in enumerate(rng.integers(1, 6, size=(rng.integers(1, 9), 2)))
        ]
        found = frontiers(runs, BASE, [])[0]
        for one in runs:
            x, y = one["bytes"], one["kld"]["value"]
            by = {
                o["id"] for o in runs
                if o["bytes"] <= x and o["kld"]["value"] <= y
                and (o["bytes"] < x or o["kld"]["value"] < y)
            }  # fmt: skip
            assert set(points(found)[one["id"]]["by"]) == by
            assert (one["id"] in found["line"]) == (not by)


def test_without_sizes_or_a_base():
    assert frontiers([run("a", None, 0.5)], BASE, []) == []
    (alone,) = frontiers([run("a", 1, 9.5)], None, [])
    assert alone["id"] == "bytes/ppl" and alone["base"] is None and alone["y"]["scale"] == "linear"
    unsized: Any = {"bytes": None}
    assert frontiers([run("a", 1, 0.0)], unsized, [])[0]["base"] is None
    # A KLD of 0 has no place on a logarithmic axis.
    assert frontiers([run("a", 1, 0.0)], BASE, [])[0]["y"]["scale"] == "linear"
