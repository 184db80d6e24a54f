"""The table of metrics: what a row promises."""

import numpy as np
import pytest
from support.comparisons import made, overlapping

from scoremode.results.metrics import METRIC, METRICS, shown
from scoremode.results.record.sections import sections


def test_a_key_is_there_once_and_is_explained():
    assert len(METRIC) == len(METRICS)
    families = {m.family: m.words for m in METRICS if m.family and m.words}
    assert all(m.words or m.family in families for m in METRICS)


@pytest.mark.parametrize("full", [False, True])
def test_a_record_has_the_metrics_whose_columns_are_there(full):
    scores = made(**overlapping(3000, 64, 64), noise=0.3, full=full)
    found = sections(scores, 64, {"token_bytes": np.ones(len(scores), np.uint16)})["metrics"]
    against = scores.against
    assert against is not None
    lacking = {m.key for m in METRICS if m.column and m.column(scores, against) is None}
    assert set(found) == METRIC.keys() - lacking
    assert ("jsd" in lacking) != full and "acceptance_draft" in lacking
    for metric in METRICS:
        if metric.column is not None and metric.where is None and metric.key not in lacking:
            mean = np.mean(metric.column(scores, against))
            value = mean if metric.then is None else metric.then(mean)
            assert found[metric.key]["value"] == pytest.approx(float(value), rel=1e-12, abs=1e-15)


def test_a_place_has_what_the_metric_has_but_where_it_says_otherwise():
    by_key = {metric.key: own for metric, own in shown("runs")}
    assert (by_key["ppl_ratio"].heading, by_key["ppl_ratio"].form) == ("PPL / base", ".5f")
    assert by_key["ppl_ratio"].ends == ".5f" and by_key["kld"].form == METRIC["kld"].form
    assert METRIC["kld"].data_key == "kld_nats" and METRIC["ppl"].data_key == "ppl"
    assert METRIC["confident_flips"].data_key == "confident_flips_share"
