"""The upper end of a distribution: curve, band, percentiles' intervals."""

import numpy as np
import pytest

from scoremode.results.statistics.bootstrap import MIN_BLOCKS
from scoremode.results.statistics.means import Blocks
from scoremode.results.statistics.tail import FLOOR, band, curve, percentile_intervals


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
