"""Charts against the Parquet files and the records they are made of."""

import dataclasses
import json
import math

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, labels_of, write_run

from scoremode.errors import RunFolderError
from scoremode.report.document import rate
from scoremode.report.page.charts import (
    CHARTS,
    Runs,
    drawn,
    histogram,
    measured,
    reductions,
    rounded,
)
from scoremode.report.page.comparison import attributions
from scoremode.report.page.data import report_data
from scoremode.report.page.figures import figures, identities
from scoremode.report.page.tables import groups_table
from scoremode.results.attribution import SCHEMA, SCHEMA_VERSION
from scoremode.results.folders.finished import open_whole
from scoremode.results.folders.store import read_record, seal_of
from scoremode.results.record.checks import checked_record
from scoremode.results.record.outcome import GreedySurvival, SampledSurvival, Survival
from scoremode.results.record.section import Metric
from scoremode.results.statistics.means import Blocks


def chart(made_report, id_: str):
    return next(c for c in made_report.section["charts"] if c["id"] == id_)


def series(made_report, id_: str, name: str):
    found = chart(made_report, id_)["series"]
    return next(s for s in found if s["run"] == made_report.id_of(name))


def made_of(id_: str, records=None, folders=None):
    return CHARTS[id_].make(CHARTS[id_], Runs({}, records or {}, folders or {}))


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


def test_groups_of_the_text_have_a_table_a_metric_and_turns_a_line(tmp_path):
    scores = made(**overlapping(9000, CONTEXT, 64), noise=0.4)
    extras = labels_of(scores) | {"turn_place": (scores.index % 400).astype(np.int32)}
    record = read_record(write_run(tmp_path / "one", scores, extras=extras))
    (section,) = report_data([tmp_path / "one"])["sections"]
    by_id = {c["id"]: c for c in section["charts"]}
    groups = record["breakdown"]["label"]
    for metric in ("kld", "ppl_ratio", "top1", "acceptance", "confident_flips"):
        found = by_id["group:label" if metric == "kld" else f"group:label:{metric}"]
        (one,) = found["series"]
        assert [b["name"] for b in found["bins"] or []] == [g["group"] for g in groups]
        assert one["y"] == pytest.approx([g[metric]["value"] for g in groups], rel=1e-6)
        assert one["n"] == [g[metric]["n"] for g in groups]
        assert [low is None for low in one["lower"]] == [g[metric]["ci95"] is None for g in groups]
    turn = by_id["group:turn"]
    (one,) = turn["series"]
    assert turn["kind"] == "line" and turn["x"]["scale"] == "log"
    wanted = [np.sqrt(low * high) for low, high in
              ((1, 1), (2, 4), (5, 16), (17, 64), (65, 256), (257, 514))]  # fmt: skip
    assert one["x"] == pytest.approx(wanted, rel=1e-6)
    turns = [g["kld"]["value"] for g in record["breakdown"]["turn"]]
    assert one["y"] == pytest.approx(turns, rel=1e-6)
    who = identities(section)
    flips = by_id["group:label:confident_flips"]
    (row,) = groups_table(flips, section["runs"], who, "t").rows
    rates = [rate(group["confident_flips"]["value"]) for group in groups]
    assert [cell.text for cell in row.cells[2:]] == rates
    assert not any(cell.attributes["class"] for cell in row.cells[2:])
    assert "group:turn" in {f.name for f in figures(section, {})}


def test_survival_is_the_records_curve_on_an_axis_from_0_to_1(made_report):
    record = open_whole(made_report.folders["d"])[0].record
    assert record.survival
    found, curve = chart(made_report, "survival"), record.survival.sampled
    one = series(made_report, "survival", "d")
    assert one["x"] == curve.tokens and one["y"] == pytest.approx(curve.whole, rel=1e-6)
    assert found["title"] == "How long samples would stay the same"
    assert [s["run"] for s in found["series"]] == [t["run"] for t in made_report.section["tail"]]
    (figure,) = [f for f in figures(made_report.section, {}) if f.name == "survival"]
    y = figure.choices[""]["layer"][0]["encoding"]["y"]["scale"]
    assert (y["type"], y["domain"]) == ("linear", [0.0, 1.0])


@pytest.mark.parametrize(
    ("changes", "title", "shares"),
    [
        ({}, "How long greedy replies stay the same", [0.5, 0.0]),
        ({"greedy": UNSET}, "How long samples stay the same", [0.9, 0.8]),
    ],
)
def test_survival_on_text_that_the_base_wrote(made_report, changes, title, shares):
    record = checked_record(made_report.folders["d"])
    ends = {"half_life": None, "ci95": None, "note": None, "longest": 2, "tokens": [1, 2]}
    greedy = GreedySurvival(**ends, whole=[0.5, 0.0], parted=3, stopped=0, unlike=0, identical=None)
    sampled = SampledSurvival(**ends, whole=[0.9, 0.8], by_base=True)
    survival = Survival(units="replies", n=3, sampled=sampled, greedy=greedy)
    record = replace(record, survival=replace(survival, **changes))
    (found,) = made_of("survival", records={"r0": record, "r1": replace(record, survival=UNSET)})
    assert (found["title"], found["series"][0]["y"]) == (title, shares)
    assert [s["run"] for s in found["series"]] == ["r0"]


def metric(value):
    return {"value": value, "ci95": None, "n": 10, "note": "few"}


def sealed(path, value):
    path.write_text(json.dumps(value | {"sha256": seal_of(value)}))


def unit(name, layer, value):
    sizes = {"bytes": 50, "base_bytes": 200, "parameters": 100}
    return {"name": name, "layer": layer, "alone": metric(value), **sizes}


def attribution(by, units):
    sums = {"alone": metric(0.1) | {"share": 1.1}}
    return {
        "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "by": by, "units": units,
        "kld": metric(0.09), "additivity": sums, "unfit": [], "block_tokens": 64,
        "columns": {"name": f"attribution-{by}.parquet", "sha256": "0" * 64, "rows": 9},
    }  # fmt: skip


def test_modules_make_a_map_of_layers_and_kinds(tmp_path):
    units = [
        unit("model.layers.0.self_attn.q_proj", 0, 0.01),
        unit("model.layers.0.mlp.down_proj", 0, 0.02),
        unit("model.layers.1.mlp.down_proj", 1, 0.03),
        unit("lm_head", None, 0.04),
    ]
    sealed(tmp_path / "attribution-module.json", attribution("module", units))
    sealed(tmp_path / "attribution-layer.json", attribution("layer", []))
    (found,) = attributions({"r0": tmp_path, "r1": tmp_path / "none"})
    assert found["run"] == "r0" and found["by"] == "module" and found["sum_share"] == 1.1
    assert found["heads"] == ["q_proj", "down_proj", "all of it"]
    values = {
        row["name"]: [cell and cell["value"] for cell in row["cells"]] for row in found["rows"]
    }
    assert values == {
        "layer 0": [0.01, 0.02, None],
        "layer 1": [None, 0.03, None],
        "lm_head": [None, None, 0.04],
    }


@pytest.mark.parametrize(
    ("by", "units", "heads", "rows"),
    [
        ("layer", [("model.layers.0", 0), ("model.layers.1", 1)], ["all of it"],
         ["model.layers.0", "model.layers.1"]),
        ("kind", [("q_proj", None), ("o_proj", None)], ["q_proj", "o_proj"], ["all layers"]),
    ],
)  # fmt: skip
def test_layers_and_kinds_by_themselves(tmp_path, by, units, heads, rows):
    made = attribution(by, [unit(name, layer, 0.1) for name, layer in units])
    sealed(tmp_path / f"attribution-{by}.json", made)
    (found,) = attributions({"r0": tmp_path})
    assert found["heads"] == heads and [row["name"] for row in found["rows"]] == rows


def test_a_recipe_is_a_curve(tmp_path):
    points = [(3.5, 0.1), (4.5, 0.02), (16.0, 0.0)]
    curve = [{"bits_per_weight": bits, "predicted": kld} for bits, kld in points]
    sealed(tmp_path / "recipe.json", {"curve": curve, "measured": metric(0.03)})
    (chart,) = made_of("recipe", folders={"r0": tmp_path, "r1": tmp_path / "none"})
    (series,) = chart["series"]
    assert series["x"] == [3.5, 4.5] and series["y"] == [0.1, 0.02] and series["run"] == "r0"
    assert made_of("recipe", folders={"r1": tmp_path / "none"}) == []
    text = (tmp_path / "recipe.json").read_text()
    (tmp_path / "recipe.json").write_text(text.replace("0.02", "0.01"))
    with pytest.raises(RunFolderError, match="was changed after it was written"):
        made_of("recipe", folders={"r0": tmp_path})


def test_charts_have_seven_digits_and_nothing_that_json_has_not():
    assert drawn(math.pi * 1e-9) == 3.141593e-09 == rounded(math.pi * 1e-9)
    assert [drawn(x) for x in (None, math.nan, math.inf, -math.inf)] == [None] * 4
    assert drawn(0.0) == 0.0


def test_a_metric_in_full():
    made = {"value": 0.1 + 0.2, "lower": 0.25, "upper": 0.5, "n": 3, "note": None}
    assert measured(Metric(0.1 + 0.2, (0.25, 0.5), 3)) == made
    without = measured(Metric(1.0, None, 3, "too few"))
    assert (without["lower"], without["upper"], without["note"]) == (None, None, "too few")


BINNED_PLACES = overlapping(9000, 64, 48)
SCORES = made(**BINNED_PLACES, noise=0.3, full=False)
WEIGHTS = np.where(BINNED_PLACES["index"] % 5, 1.0, 3.0)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_means_are_those_of_the_rows(weights):
    against = SCORES.against
    assert against is not None
    w = np.ones(len(SCORES)) if weights is None else weights
    columns = {
        "confidence": np.exp(against.base_top1_logprob),
        "target_probability": np.exp(against.base_logprob),
        "position": SCORES.position,
    }
    found = reductions(SCORES, against, Blocks(SCORES.index, 1024, weights))
    for name in columns:
        binned = found[name]
        assert sum(binned.n) == binned.of == len(SCORES)
        for i, metric in enumerate(binned.metrics):
            low, high = binned.edges[i : i + 2]
            last = i == len(binned.n) - 1
            rows = (columns[name] >= low) & ((columns[name] < high) | last)
            assert binned.n[i] == rows.sum()
            if metric is None:
                assert not rows.any()
                continue
            mean = (against.kld * w)[rows].sum() / w[rows].sum()
            assert metric.value == pytest.approx(mean, rel=1e-9)
            if metric.ci95 is not None:
                assert metric.ci95[0] <= mean <= metric.ci95[1]
    assert found["position"].edges[0] == 1 and found["position"].edges[-1] == 64


@pytest.mark.parametrize("positions", [1, 23, 24, 25, 2047])
def test_every_position_has_a_bin(positions):
    position = np.arange(1, positions + 1)
    scores = made(position - 1, position=position, full=False)
    assert scores.against is not None
    found = reductions(scores, scores.against, Blocks(scores.index, 1024))["position"]
    assert sum(found.n) == positions and len(found.n) <= 24
    assert all(found.n) and list(found.edges) == sorted(set(found.edges))


def test_a_histogram_counts_every_target_once():
    against = SCORES.against
    assert against is not None
    kld = against.kld.copy()
    kld[:7] = [0.0, -1e-6, 1e-8, 9e-9, 1e3, 1.5e4, 2e4]
    found = histogram(
        SCORES, dataclasses.replace(against, kld=kld), Blocks(SCORES.index, 1024, WEIGHTS)
    )
    assert sum(found.n) == found.of == len(kld)
    assert found.n[0] == 3 and found.n[-1] == 2
    for i, metric in enumerate(found.metrics):
        assert metric is not None and metric.value == pytest.approx(found.n[i] / len(kld))
    inside = np.histogram(np.log10(kld[kld >= 1e-8]), np.array(found.edges[1:-1]))[0]
    assert found.n[1:-1] == inside.tolist()
