"""The table of metrics: what a row promises."""

from dataclasses import fields, replace

import numpy as np
import pytest
from support.comparisons import made, overlapping

from scoremode.results.metrics import METRIC, METRICS, shown
from scoremode.results.record.sections import sections
from scoremode.results.scores import Base, Bounds


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
    lacking = {
        m.key
        for m in METRICS
        if m.column and (not isinstance(against, m.needs) or m.column(scores, against) is None)
    }
    assert set(found) == METRIC.keys() - lacking
    assert ("jsd" in lacking) != full and "acceptance_draft" in lacking
    for metric in METRICS:
        if metric.column is not None and metric.where is None and metric.key not in lacking:
            mean = np.mean(metric.column(scores, against))
            value = mean if metric.then is None else metric.then(mean)
            assert found[metric.key]["value"] == pytest.approx(float(value), rel=1e-12, abs=1e-15)


def test_bounds_have_what_needs_no_whole_distribution_and_are_not_called_a_divergence():
    compared = made(**overlapping(3000, 64, 64), noise=0.3)
    against = compared.against
    assert against is not None
    own = {f.name: getattr(against, f.name) for f in fields(Base)}
    bounds = Bounds(
        **own, kld_least=against.kld / 2, tv_least=against.tv / 2, tv_most=against.tv * 2
    )
    bounded = replace(compared, against=None, bounds=bounds)
    extras = {"token_bytes": np.ones(len(compared), np.uint16)}
    whole, found = (sections(scores, 64, extras)["metrics"] for scores in (compared, bounded))
    exact = {m.key for m in METRICS if m.base and m.needs is Base}
    assert {"ppl_ratio", "top1", "lost"} <= exact and exact <= found.keys()
    alone = found.keys() - {m.key for m in METRICS if not m.base}
    assert alone - exact == {
        *("kld_least", "tv_least", "tv_most", "ppl_base", "nll_base", "bits_per_byte_base"),
    }
    for name in exact | {"ppl_base"}:
        assert found[name]["value"] == whole[name]["value"]
    assert found["kld_least"]["value"] == pytest.approx(whole["kld"]["value"] / 2)


def test_a_place_has_what_the_metric_has_but_where_it_says_otherwise():
    by_key = {metric.key: own for metric, own in shown("runs")}
    assert (by_key["ppl_ratio"].heading, by_key["ppl_ratio"].form) == ("PPL / base", ".5f")
    assert by_key["ppl_ratio"].ends == ".5f" and by_key["kld"].form == METRIC["kld"].form
    assert METRIC["kld"].data_key == "kld_nats" and METRIC["ppl"].data_key == "ppl"
    assert METRIC["confident_flips"].data_key == "confident_flips_share"
