"""KLD in bins, against numpy over the rows of each."""

import numpy as np
import pytest
from support.comparisons import made, overlapping

from scoremode.report.page.gathered.binned import binned_means, histogram
from scoremode.results.statistics.means import Blocks

PLACES = overlapping(9000, 64, 48)
SCORES = made(**PLACES, noise=0.3, full=False)
WEIGHTS = np.where(PLACES["index"] % 5, 1.0, 3.0)


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
