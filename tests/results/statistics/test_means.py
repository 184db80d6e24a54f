"""Means in blocks of the text, against sums made row by row."""

import math

import numpy as np
import pytest
from support.comparisons import interval_by_hand

from scoremode.results.statistics.bootstrap import MIN_BLOCKS
from scoremode.results.statistics.means import (
    FLOOR,
    Blocks,
    band,
    curve,
    draws,
    estimates,
    percentile_intervals,
)

LENGTH = 10
INDEX = np.arange(200, dtype=np.int32)
VALUES = np.random.default_rng(3).normal(size=200)


def test_a_mean_is_of_the_blocks_that_weigh_anything():
    weights = np.where(INDEX < 30, 0.0, np.where(INDEX % 2, 0.5, 2.0))
    blocks = Blocks(INDEX, LENGTH, weights)
    mean = blocks.mean(VALUES)
    assert mean is not None
    assert blocks.filled == len(mean.sums) == len(mean.totals) == 17
    assert mean.n == 200
    wanted = math.fsum(VALUES * weights) / math.fsum(weights)
    assert mean.value == pytest.approx(wanted, rel=1e-12)
    assert mean.through(np.exp).value == pytest.approx(math.exp(wanted), rel=1e-12)


def test_a_ratio_is_of_both_sums():
    per = np.where(INDEX < 100, 3, 0)
    mean = Blocks(INDEX, LENGTH).mean(VALUES, per)
    assert mean is not None
    assert mean.value == pytest.approx(math.fsum(VALUES) / 300, rel=1e-12)
    assert Blocks(INDEX, LENGTH).mean(VALUES, np.zeros(200)) is None


def test_a_group_has_its_own_rows_and_blocks():
    group = np.where(INDEX < 95, 0, 2)
    first, empty, last = Blocks(INDEX, LENGTH).means_by(group, 3, {"x": VALUES})
    assert empty == {}
    assert (first["x"].n, last["x"].n) == (95, 105)
    assert (len(first["x"].sums), len(last["x"].sums)) == (10, 11)
    assert first["x"].value == pytest.approx(VALUES[:95].mean(), rel=1e-12)
    assert last["x"].value == pytest.approx(VALUES[95:].mean(), rel=1e-12)


def test_intervals_are_those_drawn_one_by_one():
    blocks = Blocks(INDEX, LENGTH)
    mean, few = blocks.mean(VALUES), Blocks(INDEX[:70], LENGTH).mean(VALUES[:70])
    assert mean is not None and few is not None
    found = estimates({"a": mean, "b": mean.through(np.exp), "few": few}, LENGTH)
    low_high = interval_by_hand(VALUES, np.ones(200), INDEX, LENGTH)
    assert found["a"].ci95 == pytest.approx(low_high, rel=1e-9)
    assert found["b"].ci95 == pytest.approx(np.exp(low_high), rel=1e-9)
    assert found["few"].ci95 is None
    assert found["few"].note == "7 blocks of 10 tokens: an interval needs at least 8"


def test_means_share_their_draws():
    mean = Blocks(INDEX, LENGTH).mean(VALUES)
    assert mean is not None
    drawn = draws([mean, mean])
    assert drawn is not None and drawn.shape[1] == 2
    assert np.array_equal(drawn[:, 0], drawn[:, 1]) and drawn[:, 0].std() > 0
    few = Blocks(INDEX[:70], LENGTH).mean(VALUES[:70])
    assert few is not None and draws([few]) is None


def test_the_same_blocks_with_each_evaluation_counted_once():
    weighted = Blocks(INDEX, LENGTH, np.where(INDEX % 2, 1.0, 4.0))
    found, expected = Blocks.same(weighted).mean(VALUES), Blocks(INDEX, LENGTH).mean(VALUES)
    other = weighted.mean(VALUES)
    assert found is not None and expected is not None and other is not None
    assert np.array_equal(found.sums, expected.sums) and np.array_equal(
        found.totals, expected.totals
    )
    assert not np.array_equal(other.totals, expected.totals)


def lognormal(n: int, seed: int = 0) -> np.ndarray:
    return np.exp(2 * np.random.default_rng(seed).normal(size=n) - 5)


@pytest.mark.parametrize("n", [300, 20_000])
def test_straight_lines_between_few_points_are_the_curve(n):
    values = lognormal(n)
    x, count, error = curve(values)
    assert len(x) <= 200 and error <= 0.002
    for value, many in zip(x, count, strict=True):
        assert many == (values >= value).sum()
    assert (x[0], x[-1]) == (values.min(), values.max())
    # Every value's own place on the curve, by plain interpolation; slopes are 1 to 3 in the tail.
    ordered = np.sort(values)
    exact = np.log10(n - np.arange(n))
    drawn = np.interp(np.log10(ordered), np.log10(x), np.log10(count))
    steepness = np.abs(np.diff(np.log10(count)) / np.diff(np.log10(x))).max()
    assert np.abs(drawn - exact).max() <= 0.002 * np.hypot(1, steepness) + 1e-12


def test_no_more_points_than_asked_for_and_the_error_says_so():
    values = lognormal(5000)
    x, _, error = curve(values, most=10)
    assert len(x) == 10 and error > 0.002


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.0], ([], [])),
        ([0.0, -1e-7, 1e-9], ([], [])),
        ([0.0, 0.5], ([0.5], [1])),
        ([0.5, 0.5, 2.0, FLOOR], ([FLOOR, 0.5, 2.0], [4, 3, 1])),
    ],
)
def test_small_and_equal_values(values, expected):
    x, count, error = curve(np.array(values))
    assert (x.tolist(), count.tolist()) == expected
    assert error <= 1


def test_a_band_is_the_bootstraps_share():
    values, index = lognormal(4000), np.arange(4000)
    weights = np.where(index % 3, 1.0, 5.0)
    blocks = Blocks(index, 200, weights)
    at = [float(np.quantile(values, q)) for q in (0.1, 0.5, 0.99)]
    rng = np.random.default_rng(3)
    drawn = rng.integers(20, size=(4000, 20))
    for x, metric in zip(at, band(values, at, blocks), strict=True):
        # Each counts as one, whatever it weighs.
        assert metric.value == pytest.approx((values >= x).mean())
        by_block = (values >= x).reshape(20, 200).mean(1)
        spread = by_block[drawn].mean(1).std()
        assert metric.ci95 is not None
        width = metric.ci95[1] - metric.ci95[0]
        # 2 × 1.96 standard deviations, and Student's factor for 20 blocks.
        assert width == pytest.approx(2 * 2.093 * spread * np.sqrt(20 / 19), rel=0.1)


def test_an_interval_of_a_percentile_is_that_of_resampled_percentiles():
    """Woodruff's inversion beside the plain way: percentiles of the resampled text itself."""
    n, length = 30_000, 500
    values, blocks = lognormal(n, 5), Blocks(np.arange(n), length)
    percents = (50.0, 90.0, 99.0)
    found = percentile_intervals(
        values, {q: float(np.percentile(values, q)) for q in percents}, blocks
    )
    rng, cut = np.random.default_rng(0), values.reshape(-1, length)
    drawn = np.stack(
        [np.percentile(cut[rng.integers(len(cut), size=len(cut))], percents) for _ in range(600)]
    )
    for column, percent in enumerate(percents):
        low, high = found[percent].ci95 or (None, None)
        plain_low, plain_high = np.percentile(drawn[:, column], [2.5, 97.5])
        assert found[percent].value == np.percentile(values, percent)
        assert low == pytest.approx(plain_low, rel=0.05)
        assert high == pytest.approx(plain_high, rel=0.05)


def test_intervals_hold_the_true_percentile_as_often_as_they_say():
    true = {90.0: np.exp(2 * 1.2815515655 - 5), 99.0: np.exp(2 * 2.3263478740 - 5)}
    held = dict.fromkeys(true, 0)
    for seed in range(100):
        values = lognormal(4000, seed)
        found = percentile_intervals(
            values, {q: float(np.percentile(values, q)) for q in true}, Blocks(np.arange(4000), 100)
        )
        for percent, value in true.items():
            low, high = found[percent].ci95 or (0.0, 0.0)
            held[percent] += low <= value <= high
    # At 95 % each, below 88 of 100 has a chance below 0.5 %.
    assert all(count >= 88 for count in held.values())


def test_too_few_beyond_have_no_interval():
    values = lognormal(5000)
    blocks = Blocks(np.arange(5000), 250)
    found = percentile_intervals(values, {99.9: float(np.percentile(values, 99.9))}, blocks)[99.9]
    assert found.ci95 is None and "too few to tell" in (found.note or "")
    few = percentile_intervals(values, {50.0: 1.0}, Blocks(np.arange(5000), 1000))[50.0]
    assert few.ci95 is None and str(MIN_BLOCKS) in (few.note or "")
