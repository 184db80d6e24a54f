"""The worst targets of several runs, beside the Parquet files."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scoremode.report.page.gathered.side_by_side import side_by_side, worst_places


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
    records = [{"worst": [worst(5, 1.0), worst(9, 0.5)]}, {"worst": [worst(5, 3.0, window=2)]}, {}]
    assert worst_places(records) == [(0, 10), (2, 6)]
    assert worst_places([{}, {"worst": []}]) == []


def test_many_runs_have_three_each():
    records = [{"worst": [worst(10 * run + i, 1.0) for i in range(10)]} for run in range(20)]
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
    records = {"r": {"worst": [{"index": 0, "window": 0, "position": 1, "target": 7, "top1": 9,
                                "base_top1": 8, "top1_text": "nine"}]}}  # fmt: skip
    (found,) = side_by_side([(0, 1), (4, 4)], compared, records, {8: "eight", 9: "not this"})
    assert found["target"]["text"] is None and found["context"] is None
    assert (found["base_top1"]["text"], found["top1"][0]["text"]) == ("eight", "nine")
    assert found["worst_of"] == ["r"]
