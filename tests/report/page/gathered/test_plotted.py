"""Charts against the Parquet files and the records they are made of."""

import json

import numpy as np
import pytest


def chart(made_report, id_: str):
    return next(c for c in made_report.section["charts"] if c["id"] == id_)


def series(made_report, id_: str, name: str):
    found = chart(made_report, id_)["series"]
    return next(s for s in found if s["run"] == made_report.id_of(name))


def test_a_tail_is_the_share_of_targets(made_report):
    for tail, name in zip(made_report.section["tail"], "abcde", strict=True):
        kld = made_report.columns(name)["kld"]
        assert tail["run"] == made_report.id_of(name) and tail["x"] == sorted(tail["x"])
        # x is rounded: what it stands for lies within that.
        for x, y, n in zip(tail["x"], tail["y"], tail["n"], strict=True):
            assert (kld >= x * (1 + 1e-6)).sum() <= n <= (kld >= x * (1 - 1e-6)).sum()
            assert y == pytest.approx(n / len(kld), rel=1e-6)
        assert tail["below"] == (kld < 1e-8).sum() and tail["error"] <= 0.002
        banded = [i for i, low in enumerate(tail["upper"]) if low is not None]
        assert len(banded) >= 20 and {0, len(tail["x"]) - 1} <= set(banded)
        assert all(low is None or low > 0 for low in tail["lower"])


def test_groups_are_the_records(made_report):
    record = json.loads((made_report.folders["d"] / "record.json").read_text())
    for name in ("confidence", "position"):
        found, groups = series(made_report, f"group:{name}", "d"), record["breakdown"][name]
        assert found["y"] == pytest.approx([g["kld"]["value"] for g in groups], rel=1e-6)
        assert found["lower"] == pytest.approx([(g["kld"]["ci95"] or [None])[0] for g in groups])
        assert found["n"] == [g["n"] for g in groups]
        bins = chart(made_report, f"group:{name}")["bins"]
        assert [b["name"] for b in bins] == [g["group"] for g in groups]
    assert not any(c["id"] == "group:token_class" for c in made_report.section["charts"])


def test_bins_are_named_and_hold_their_share(made_report):
    columns = made_report.columns("d")
    position, found = chart(made_report, "position"), series(made_report, "position", "d")
    for b, x, n, y in zip(position["bins"], found["x"], found["n"], found["y"], strict=True):
        rows = (columns["position"] >= b["lower"]) & (columns["position"] < b["upper"])
        assert n == rows.sum() and b["share"] == pytest.approx(rows.mean(), rel=1e-6)
        assert y == pytest.approx(columns["kld"][rows].mean(), rel=1e-6)
        assert x == columns["position"][rows].astype(float).mean()
    assert position["bins"][0]["name"] == "1 to 3" and position["bins"][-1]["name"] == "61 to 63"
    by_target = chart(made_report, "target_probability")
    assert by_target["x"]["scale"] == "category"
    assert [s["x"] for s in by_target["series"]] == [[float(i) for i in range(10)]] * 5


def test_a_histogram_begins_and_ends_where_a_run_has_targets(made_report):
    found = chart(made_report, "histogram")
    counts = np.array([s["n"] for s in found["series"]])
    assert (counts.sum(1) == len(made_report.columns("a")["kld"])).all()
    assert counts[:, 0].any() and counts[:, -1].any()
    for name in "ad":
        kld, own = made_report.columns(name)["kld"], series(made_report, "histogram", name)
        for b, n, y in zip(found["bins"], own["n"], own["y"], strict=True):
            logs = np.log10(np.maximum(kld, 1e-300))
            rows = (logs >= b["lower"]) & (logs < b["upper"])
            if not b["name"].startswith("below"):
                assert n == rows.sum()
            assert y == pytest.approx(n / len(kld), rel=1e-6)
