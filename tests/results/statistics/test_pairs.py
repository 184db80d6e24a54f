"""All pairs of runs: differences, p-values, Holm, against other ways to the same."""

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from scoremode.results.statistics.bootstrap import percentile_interval, resampled
from scoremode.results.statistics.pairs import holm, mcnemar, paired_answers, pairs, student_cdf


def by_integration(t: float, v: int) -> float:
    """Student's distribution function by the trapezoidal rule over its density."""
    x = np.linspace(t, 0, 400_001)
    front = math.exp(math.lgamma((v + 1) / 2) - math.lgamma(v / 2)) / math.sqrt(v * math.pi)
    return 0.5 - float(np.trapezoid(front * (1 + x * x / v) ** (-(v + 1) / 2), x))


@pytest.mark.parametrize("freedom", [1, 2, 7, 30, 200])
def test_student_as_its_density_says(freedom):
    for t in (0.0, -1e-3, -0.5, -1.0, -2.3, -4.0):
        assert student_cdf(t, freedom) == pytest.approx(by_integration(t, freedom), abs=1e-9)
    # Closed forms: with one degree it is Cauchy's, and far out nothing is lost.
    assert student_cdf(-1e6, 1) == pytest.approx(math.atan(1e-6) / math.pi, rel=1e-9)
    t = -50.0
    assert student_cdf(t, 2) == pytest.approx((1 + t / math.sqrt(2 + t * t)) / 2, rel=1e-9)


def test_student_as_tables_have_it():
    for freedom, t, share in ((7, 2.364624, 0.025), (30, 2.749996, 0.005), (10, 1.812461, 0.05)):
        assert student_cdf(-t, freedom) == pytest.approx(share, rel=1e-6)


def test_holm_by_its_steps():
    # Holm (1979) by hand: 4 × 0.01, 3 × 0.02, then no smaller than before.
    assert holm([0.03, 0.01, 0.02, 0.9]) == pytest.approx([0.06, 0.04, 0.06, 0.9])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    rng = np.random.default_rng(0)
    p = rng.random(50) ** 3
    order = np.argsort(p)
    steps = np.maximum.accumulate(np.minimum(1, (50 - np.arange(50)) * p[order]))
    assert np.array(holm(p.tolist()))[order] == pytest.approx(steps)


def runs(count: int, blocks: int, apart: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sums of runs that share a text, each further off by `apart`."""
    rng = np.random.default_rng(seed)
    totals = rng.integers(900, 1024, blocks).astype(float)
    text = rng.normal(size=blocks)
    means = [text + i * apart + 0.1 * rng.normal(size=blocks) for i in range(count)]
    return np.stack(means) * totals, totals


def test_a_pair_is_the_paired_difference_and_its_interval():
    sums, totals = runs(4, 40, 0.01)
    for pair in pairs(sums, totals):
        difference = (sums[pair.a] - sums[pair.b])[None]
        assert pair.value == pytest.approx(difference.sum() / totals.sum())
        drawn = resampled(difference, totals[None])[:, 0]
        assert pair.ci95 == pytest.approx(tuple(percentile_interval(drawn, 40)), rel=1e-9)


@pytest.mark.parametrize("blocks", [9, 40, 200])
def test_p_is_below_5_percent_where_the_interval_excludes_0(blocks):
    seen = set()
    for seed in range(12):
        for pair in pairs(*runs(5, blocks, 0.02 / math.sqrt(blocks / 40), seed)):
            assert pair.ci95 is not None and pair.p is not None
            excludes = pair.ci95[0] > 0 or pair.ci95[1] < 0
            # At its very edge rounding and interpolation decide.
            if abs(pair.p - 0.05) > 0.003:
                assert (pair.p < 0.05) == excludes
            seen.add(excludes)
    assert seen == {True, False}


def test_p_is_a_t_tests_where_means_are_normal():
    """Student's paired test on blocks of equal weight, for which it is made."""
    rng = np.random.default_rng(1)
    for blocks in (12, 60):
        for shift in (0.0, 0.3, 1.0, 3.0):
            a = rng.normal(size=blocks) + shift
            sums = np.stack([a, np.zeros(blocks)])
            (pair,) = pairs(sums, np.ones(blocks))
            t = a.mean() / (a.std(ddof=1) / math.sqrt(blocks))
            exact = 2 * student_cdf(-abs(t), blocks - 1)
            assert pair.p is not None
            # Extrapolated tails, and the luck of 10,000 resamples.
            assert math.log(pair.p) == pytest.approx(math.log(exact), rel=0.2, abs=0.2)


def test_equal_runs_never_differ_and_a_constant_difference_always():
    sums, totals = runs(1, 20, 0.0)
    (same,) = pairs(np.concatenate([sums, sums]), totals)
    assert (same.value, same.p, same.p_holm, same.verdict) == (0.0, 1.0, 1.0, "not distinguishable")
    (other,) = pairs(np.stack([np.full(20, 3.0), np.full(20, 2.0)]), np.ones(20))
    assert other.value == 1.0 and other.verdict == "higher" and other.p == 0.0


def test_of_equal_models_hardly_any_is_told_apart():
    """The family's error: 15 pairs without a difference, 60 times, at most 5 % with any verdict."""
    wrong = 0
    for seed in range(60):
        found = pairs(*runs(6, 40, 0.0, seed))
        wrong += any(pair.verdict != "not distinguishable" for pair in found)
    # Above 7 of 60 has a chance below 1 % at 5 % each.
    assert wrong <= 7


def test_too_few_blocks_tell_nothing():
    for pair in pairs(*runs(3, 7, 1.0)):
        assert (pair.ci95, pair.p, pair.p_holm, pair.verdict) == (None, None, None, "not known")
        assert pair.value < 0


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (8, 0, 2 / 256), (0, 8, 2 / 256), (6, 1, 16 / 128), (5, 5, 1.0), (1, 0, 1.0)],
)
def test_mcnemar_by_hand(lost, gained, p):
    assert mcnemar(lost, gained) == p


def test_mcnemar_of_many_flips_is_exact():
    tail = sum(comb(2040, k) for k in range(1001))
    assert mcnemar(1000, 1040) == float(Fraction(2 * tail, 2**2040))
    assert 0.04 < mcnemar(5000, 5200) < 0.06


def test_what_accuracy_hides_is_counted():
    own = np.array([1, 1, 0, 0, 1, 0, 1, 1, 0, 0], float)
    base = np.array([1, 0, 1, 0, 0, 1, 1, 1, 0, 0], float)
    found = paired_answers(own, base)
    assert (found["lost"], found["gained"], found["p"]) == (2, 2, 1.0)
    assert found["difference"]["value"] == 0 and found["difference"]["n"] == 10
    low, high = found["difference"]["ci95"]
    assert low < 0 < high
    assert paired_answers(own, base) == found


def test_what_is_no_right_or_wrong_has_no_flips():
    found = paired_answers(np.array([0.5, 1, 0]), np.array([1, 1, 0.0]))
    assert found.keys() == {"difference"} and found["difference"]["ci95"] is None
    assert found["difference"]["note"] == "3 questions: an interval needs at least 8"
