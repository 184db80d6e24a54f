"""Blocks of a section, and the pairs by them."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.chats.blocks import NUMBERS, chat_scores, ends_by_hand, write_chat_run
from support.record_fields import fields

from scoremode.report.page.comparison import cut, frontiers, matrices, side_by_side, worst_places
from scoremode.report.page.summary import summarized
from scoremode.results.folders.finished import open_run
from scoremode.results.statistics.blocks import block_length


@pytest.fixture(scope="module")
def summaries(made_report):
    return {name: summarized(made_report.folders[name], []) for name in ("a", "d", "e", "alone")}


def test_blocks_are_those_that_the_columns_ask_for(made_report, summaries):
    runs = [open_run(made_report.folders[name]) for name in ("a", "d", "e")]
    columns = {}
    for i, run in enumerate(runs):
        columns |= {f"nll {i}": run.nll, f"kld {i}": run.kld}
        if i:
            before = runs[i - 1]
            columns[f"nll {i - 1} - {i}"] = before.nll - run.nll
            columns[f"kld {i - 1} - {i}"] = before.kld - run.kld
    expected = block_length(runs[0].places.index, columns, 64)
    found = cut([summaries[name] for name in ("a", "d", "e")])
    assert (found.chosen.tokens, found.chosen.rule) == (expected.tokens, expected.rule)
    for name, length in expected.measured.items():
        assert found.chosen.measured[name] == pytest.approx(length, rel=1e-6), name
    block = runs[0].places.index // expected.tokens
    assert found.weights == pytest.approx(np.bincount(block))
    sums = found.sums(summaries["a"].units.nll)
    assert sums == pytest.approx(np.bincount(block, weights=runs[0].nll))


def test_differences_are_those_of_the_columns(made_report, summaries):
    found = matrices(summaries, cut(list(summaries.values())))
    assert [m["of"] for m in found] == ["kld", "nll"]
    assert [m["order"] for m in found] == [["a", "d", "e"], ["a", "d", "e", "alone"]]
    columns = {name: made_report.columns(name) for name in summaries}
    for matrix in found:
        many = len(matrix["order"])
        assert len(matrix["pairs"]) == many * (many - 1) / 2 and matrix["note"] is None
        for pair in matrix["pairs"]:
            a, b = columns[pair["a"]], columns[pair["b"]]
            of_a, of_b = (c["kld"] if matrix["of"] == "kld" else -c["logprob"] for c in (a, b))
            assert pair["value"] == pytest.approx((of_a - of_b).mean(), rel=1e-6, abs=1e-12)
            assert pair["lower"] < pair["value"] < pair["upper"]
            assert pair["p"] <= pair["p_holm"] <= 1
            assert (pair["ratio"] is None) == (matrix["of"] == "kld")
    verdicts = {(p["a"], p["b"]): p["verdict"] for p in found[0]["pairs"]}
    # d and e have noise of one size, and a far less.
    assert verdicts == {
        ("a", "d"): "lower", ("a", "e"): "lower", ("d", "e"): "not distinguishable"
    }  # fmt: skip


def test_one_run_has_no_pair(summaries):
    assert matrices({"a": summaries["a"]}, cut([summaries["a"]])) == []


def test_conversations_are_drawn_whole(tmp_path):
    runs = {n: write_chat_run(tmp_path / n, 0.3, seed) for n, seed in (("a", 0), ("b", 5))}
    found = {name: summarized(folder, []) for name, folder in runs.items()}
    blocks = cut(list(found.values()))
    assert blocks.chosen.rule == "conversation" and len(blocks.weights) == len(NUMBERS)
    (a, conversation), (b, _) = chat_scores(0.3), chat_scores(0.3, 5)
    sizes = [(conversation == n).sum() for n in NUMBERS]
    assert blocks.weights.tolist() == sizes
    kld, nll = matrices(found, blocks)
    for matrix, d in ((kld, a.against.kld - b.against.kld), (nll, a.nll - b.nll)):
        (pair,) = matrix["pairs"]
        assert pair["value"] == pytest.approx(d.mean(), rel=1e-6)
        by_hand = ends_by_hand(d, conversation)
        assert [pair["lower"], pair["upper"]] == pytest.approx(by_hand, rel=1e-6)


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


def test_every_value_is_its_runs_own(made_report):
    worst = made_report.section["worst"]
    assert len(worst) > 10
    names = {made_report.id_of(name): name for name in "abcde"}
    columns = {name: made_report.columns(name) for name in "abcde"}
    for target in worst:
        assert [names[id_] for id_ in target["runs"]] == list("abcde")
        for i, id_ in enumerate(target["runs"]):
            c = columns[names[id_]]
            (row,) = np.flatnonzero(
                (c["window"] == target["window"]) & (c["position"] == target["position"])
            )
            assert target["kld"][i] == pytest.approx(c["kld"][row], rel=1e-6)
            assert target["p"][i] == pytest.approx(math.exp(c["logprob"][row]), rel=1e-6)
            assert target["top1"][i]["id"] == c["top1"][row]
            assert target["top1_p"][i] == pytest.approx(math.exp(c["top1_logprob"][row]), rel=1e-6)
            assert target["base_p"] == pytest.approx(math.exp(c["base_logprob"][row]), rel=1e-6)
            assert target["base_top1"]["id"] == c["base_top1"][row]
            assert (target["target"]["id"], target["index"]) == (c["target"][row], c["index"][row])


def test_the_worst_of_all_comes_first_and_each_run_has_its_own(made_report):
    worst = made_report.section["worst"]
    largest = [max(target["kld"]) for target in worst]
    assert largest == sorted(largest, reverse=True)
    assert largest[0] == pytest.approx(max(made_report.columns(n)["kld"].max() for n in "de"))
    assert len({target["index"] for target in worst}) == len(worst)
    for name in "abcde":
        id_ = made_report.id_of(name)
        # All ten are not there: 40 in all, 8 of each.
        assert sum(id_ in target["worst_of"] for target in worst) >= 8


def test_texts_are_those_of_the_records(made_report):
    for target in made_report.section["worst"]:
        assert target["target"]["text"] == f"<script>{target['target']['id']}"
        assert target["context"] and target["context"].startswith("\x1b[2J\ud800")


def worst(index: int, kld: float, window: int = 0) -> dict[str, Any]:
    return {"window": window, "position": index + 1, "index": index, "kld": kld}


def test_a_place_in_several_windows_is_taken_where_it_is_worst():
    found = [[worst(5, 1.0), worst(9, 0.5)], [worst(5, 3.0, window=2)], []]
    records = [fields({"worst": targets}) for targets in found]
    assert worst_places(records) == [(0, 10), (2, 6)]
    assert worst_places([fields({})]) == []


def test_many_runs_have_three_each():
    found = [[worst(10 * run + i, 1.0) for i in range(10)] for run in range(20)]
    records = [fields({"worst": targets}) for targets in found]
    assert len(worst_places(records)) == 60


def test_a_text_that_nobody_knows_is_none():
    of = SimpleNamespace(
        at={
            (0, 1): {
                "index": 0, "target": 7, "base_p": 0.5, "base_top1": 8, "base_top1_p": 0.5, "p": 0.1,
                "top1": 9, "top1_p": 0.2, "kld": 0.4,
            }
        }
    )  # fmt: skip
    compared: Any = {"r": of}
    record = fields({"worst": [{"index": 0, "window": 0, "position": 1, "target": 7, "top1": 9,
                                "base_top1": 8, "top1_text": "nine"}]})  # fmt: skip
    (found,) = side_by_side([(0, 1), (4, 4)], compared, {"r": record}, {8: "eight", 9: "not this"})
    assert found["target"]["text"] is None and found["context"] is None
    assert (found["base_top1"]["text"], found["top1"][0]["text"]) == ("eight", "nine")
    assert found["worst_of"] == ["r"]
