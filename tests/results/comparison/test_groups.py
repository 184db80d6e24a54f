"""Runs by group: those that have the same groups, the worst group first, and notes on the others."""

import json

import numpy as np
import pytest
from support.run_folders import labels_of, scores_of, write_run

from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.store import read_record


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = {
        name: write_run(folder / name, scores, extras=labels_of(scores))
        for name, noise in (("Q8", 0.02), ("Q4", 0.3))
        if (scores := scores_of(noise))
    }
    found["plain"] = write_run(folder / "plain", scores_of(0.6))
    other = scores_of(0.9)
    label = np.where(other.index % 2 == 0, "even", "odd").astype(object)
    found["other"] = write_run(folder / "other", other, extras={"label": label})
    return found


def test_every_run_s_groups_are_its_record_s(folders):
    value = ranking([folders["Q4"], folders["Q8"]])
    groups = value["groups"]
    assert {group["group"] for group in groups} == {"prose", "code", "math"}
    for group in groups:
        assert [run["model"] for run in group["runs"]] == ["Q8", "Q4"]
        for run in group["runs"]:
            record = read_record(folders[run["model"]])
            (own,) = [g for g in record["breakdown"]["label"] if g["group"] == group["group"]]
            assert {k: own[k] for k in ("group", "n", "share")} | run == own | {
                "model": run["model"]
            }
    worst = [max(run["kld"]["value"] for run in group["runs"]) for group in groups]
    assert worst == sorted(worst, reverse=True)
    assert value["notes"] == []
    json.dumps(value, allow_nan=False)


def test_by_perplexity_the_group_of_the_largest_is_first(folders):
    groups = ranking([folders["Q4"], folders["Q8"]], "ppl")["groups"]
    worst = [max(run["ppl"]["value"] for run in group["runs"]) for group in groups]
    assert worst == sorted(worst, reverse=True)


def test_runs_without_groups_or_with_others_are_named(folders):
    value = ranking([folders[name] for name in ("Q8", "plain", "other")])
    assert all([run["model"] for run in group["runs"]] == ["Q8"] for group in value["groups"])
    assert value["notes"] == [
        f"{folders['plain']} has no groups: it is not in their tables",
        f"{folders['other']} has other groups: it is not in their tables",
    ]


def test_without_groups_there_are_none(folders):
    value = ranking([folders["plain"]])
    assert value["groups"] == [] and value["notes"] == []
