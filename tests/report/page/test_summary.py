"""A run reduced to what the report needs of it."""

import math

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.report.page.summary import (
    binned_means,
    drawn,
    histogram,
    measured,
    rounded,
    summarized,
)
from scoremode.results.record.section import Metric
from scoremode.results.statistics.means import Blocks

PLACES = overlapping(9000, CONTEXT, 48)


def test_units_are_sums_over_windows_lengths(made_report):
    columns = made_report.columns("c")
    units = summarized(made_report.folders["c"], []).units
    unit = columns["index"] // CONTEXT
    assert units.tokens == CONTEXT and units.last == columns["index"].max()
    assert units.weights == pytest.approx(np.bincount(unit))
    assert units.nll == pytest.approx(np.bincount(unit, weights=-columns["logprob"]))
    assert units.kld == pytest.approx(np.bincount(unit, weights=columns["kld"]))


def test_weights_count_in_sums_and_not_in_percentiles(tmp_path):
    weights = np.where(PLACES["index"] % 5, 1.0, 3.0)
    scores = made(**PLACES, noise=0.3, full=False)
    folder = write_run(tmp_path / "run", scores, extras={"weight": weights})
    found = summarized(folder, [])
    unit = PLACES["index"] // CONTEXT
    assert found.units.nll == pytest.approx(np.bincount(unit, weights=scores.nll * weights))
    assert found.compared is not None and scores.against is not None
    metrics = found.compared.metrics
    assert metrics["kld_p99"].value == pytest.approx(np.quantile(scores.against.kld, 0.99))


def test_targets_that_are_asked_for(made_report):
    columns = made_report.columns("c")
    places = [(3, 7), (0, 1), (10**6, 1), (0, 10**6)]
    found = summarized(made_report.folders["c"], places).compared
    assert found is not None and found.at.keys() == {(3, 7), (0, 1)}
    (row,) = np.flatnonzero((columns["window"] == 3) & (columns["position"] == 7))
    at = found.at[3, 7]
    assert at["kld"] == columns["kld"][row] and at["index"] == columns["index"][row]
    assert at["p"] == pytest.approx(np.exp(columns["logprob"][row]))


def test_texts_of_targets_where_the_run_kept_them(tmp_path):
    scores = made(**PLACES, noise=0.3, full=False)
    texts = np.array([f"<{token}>\x00" for token in scores.target], object)
    folder = write_run(
        tmp_path / "run", scores, extras={"token_text": texts}, changes={"scores.token_text": True}
    )
    found = summarized(folder, [(0, 1), (1, 5)])
    assert found.compared is not None
    for at in found.compared.at.values():
        assert found.texts[at["target"]] == f"<{at['target']}>\x00"
    assert len(found.texts) <= 6
    assert summarized(folder, []).texts == {}


def test_what_is_read_is_let_go(made_report):
    run = summarized(made_report.folders["c"], []).run
    assert run.kld is not None and len(run.nll) == len(run.kld) == len(run.places.index) == 0
    alone = summarized(made_report.folders["alone"], [])
    assert alone.run.kld is None and alone.compared is None and alone.units.kld is None


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
    found = binned_means(SCORES, against, Blocks(SCORES.index, 1024, weights))
    assert found.keys() == columns.keys()
    for name, binned in found.items():
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
    found = binned_means(scores, scores.against, Blocks(scores.index, 1024))["position"]
    assert sum(found.n) == positions and len(found.n) <= 24
    assert all(found.n) and list(found.edges) == sorted(set(found.edges))


def test_a_histogram_counts_every_target_once():
    against = SCORES.against
    assert against is not None
    kld = against.kld.copy()
    kld[:7] = [0.0, -1e-6, 1e-8, 9e-9, 1e3, 1.5e4, 2e4]
    found = histogram(kld, Blocks(SCORES.index, 1024, WEIGHTS))
    assert sum(found.n) == found.of == len(kld)
    assert found.n[0] == 3 and found.n[-1] == 2
    for i, metric in enumerate(found.metrics):
        assert metric is not None and metric.value == pytest.approx(found.n[i] / len(kld))
    inside = np.histogram(np.log10(kld[kld >= 1e-8]), np.array(found.edges[1:-1]))[0]
    assert found.n[1:-1] == inside.tolist()
