"""A run reduced to what the report needs of it."""

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.report.page.summary import summarized

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
