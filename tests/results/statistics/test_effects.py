"""What readers notice, against plain loops over rows; rare events, and groups without any."""

import math

import numpy as np
import pytest
from support.comparisons import interval_by_hand, made, overlapping

from scoremode.results.record.sections import sections
from scoremode.results.scores import Scores
from scoremode.results.statistics import bootstrap
from scoremode.results.statistics.bootstrap import Metric
from scoremode.results.statistics.effects import CONFIDENT, effects_by, rare
from scoremode.results.statistics.means import Blocks

LENGTH = 40


def by_hand(scores: Scores, confident: float) -> dict[str, tuple[list[float], list[float]]]:
    """Per row, in plain Python: what each share or mean is of, and whether the row counts."""
    c = scores.against
    assert c is not None and c.base_entropy is not None and c.model_entropy is not None
    rows = range(len(scores))
    sure = [float(math.exp(x) > confident) for x in c.base_top1_logprob]
    half = [math.exp(scores.logprob[i]) < math.exp(c.base_logprob[i]) / 2 for i in rows]
    return {
        "confident_flips": ([sure[i] * (scores.top1[i] != c.base_top1[i]) for i in rows], sure),
        "halved": ([float(x) for x in half], [1.0] * len(scores)),
        "entropy_change": (list(c.model_entropy - c.base_entropy), [1.0] * len(scores)),
    }


@pytest.mark.parametrize("confident", [0.5, CONFIDENT])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_is_the_one_computed_by_hand(confident, weighted):
    scores = made(**overlapping(2400, LENGTH, 13), noise=1.2)
    extras, w = {}, np.ones(len(scores))
    if weighted:
        w = np.random.default_rng(8).choice([0.0, 0.5, 1.0, 2.0], len(scores))
        extras["weight"] = w
    found = sections(scores, LENGTH, extras, block_length=LENGTH, confident=confident)
    assert found["thresholds"] == {"confident": confident}
    for name, (top, bottom) in by_hand(scores, confident).items():
        metric = found["metrics"][name]
        top, bottom = np.array(top) * w, np.array(bottom)
        assert metric["n"] == int(bottom.sum()), name
        bottom = bottom * w
        assert 0 < abs(top.sum()) < bottom.sum()
        assert metric["value"] == pytest.approx(math.fsum(top) / math.fsum(bottom), rel=1e-12)
        ends = interval_by_hand(top, bottom, scores.index, LENGTH)
        assert metric["ci95"] == pytest.approx(ends, rel=1e-7, abs=1e-12), name


def test_percentiles_have_the_intervals_of_their_shares():
    """Woodruff's inversion, one resample after the other."""
    scores = made(np.arange(24_000), noise=0.6)
    assert scores.against is not None
    kld = scores.against.kld
    found = sections(scores, LENGTH, {}, block_length=400)
    ordered = sorted(kld)
    for name, percent in (("kld_p99", "99"), ("kld_p999", "99.9")):
        metric = found["metrics"][name]
        assert metric["value"] == found["distribution"]["kld"][percent]
        share = float(percent) / 100
        below = (kld <= metric["value"]).astype(float)
        low, high = interval_by_hand(below, np.ones(len(kld)), scores.index, 400)
        ends = []
        for end in (low, high):
            place = (share + end - below.mean()) * (len(kld) - 1)
            i = int(place)
            ends.append(ordered[i] + (place - i) * (ordered[i + 1] - ordered[i]))
        assert metric["ci95"] == pytest.approx(ends, rel=1e-7)
        assert metric["ci95"][0] < metric["value"] < metric["ci95"][1]


def test_groups_are_the_whole_of_their_own_targets():
    scores = made(np.arange(6_000), noise=1.0)
    assert scores.against is not None
    group = np.random.default_rng(3).integers(0, 3, len(scores))
    blocks = Blocks(scores.index, LENGTH)
    found = effects_by(scores, scores.against, blocks, group, 4)
    assert not found[3].means and not found[3].tails
    for g in range(3):
        rows = group == g
        own = {k: np.array(t)[rows] for k, (t, _) in by_hand(scores, CONFIDENT).items()}
        sure = np.array(by_hand(scores, CONFIDENT)["confident_flips"][1])[rows]
        assert found[g].means["halved"].value == pytest.approx(own["halved"].mean(), rel=1e-12)
        flips = found[g].means["confident_flips"]
        assert flips.value == pytest.approx(own["confident_flips"].sum() / sure.sum(), rel=1e-12)
        assert flips.n == int(sure.sum())
        for name, percent in (("kld_p99", 99), ("kld_p999", 99.9)):
            wanted = np.percentile(scores.against.kld[rows], percent)
            assert found[g].tails[name].value == pytest.approx(wanted, rel=1e-12)


def test_a_base_that_is_never_sure_has_no_flips():
    scores = made(np.arange(900), noise=0.5)
    found = sections(scores, LENGTH, {}, block_length=LENGTH, confident=0.999_999)["metrics"]
    assert "confident_flips" not in found and "halved" in found


def test_what_was_never_seen_has_no_interval():
    scores = made(np.arange(900), noise=0.0)
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["metrics"]
    for name in ("confident_flips", "halved"):
        assert found[name]["value"] == 0 and found[name]["ci95"] is None
        assert found[name]["note"].startswith(f"none of {found[name]['n']:,} targets")
    kept = Metric(0.5, (0.4, 0.6), 10)
    assert rare(kept) is kept
    assert rare(Metric(1.0, (1.0, 1.0), 10)).ci95 is None


def test_a_tail_of_few_targets_has_no_interval():
    scores = made(np.arange(bootstrap.MIN_BLOCKS * LENGTH), noise=0.5)
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["metrics"]["kld_p999"]
    assert found["ci95"] is None and "with a target beyond it" in found["note"]
