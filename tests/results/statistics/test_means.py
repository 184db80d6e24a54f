"""Means in blocks of the text, against sums made row by row."""

import math

import numpy as np
import pytest
from support.comparisons import interval_by_hand

from scoremode.results.statistics.means import Blocks, draws, estimates

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
