"""Ticks lie within what is shown, and `share` is where a value is drawn."""

import math

import numpy as np
import pytest

from scoremode.report.page.axes import SYMLOG, linear, logarithmic, share, signed


def test_many_decades_have_powers_of_ten_and_few_have_more():
    assert logarithmic([0.0002, 0.6]).ticks == (0.001, 0.01, 0.1)
    assert logarithmic([0.02, 0.3, None, 0.0]).ticks == (0.02, 0.05, 0.1, 0.2)
    assert len(logarithmic([1e-9, 1e9]).ticks) < 10
    assert logarithmic([None, 0.0]).ticks == ()


@pytest.mark.parametrize("values", [[0.011, 0.013], [1.0, 1.0], [3e-7, 2e-2], [0.5, 40.0]])
def test_ticks_of_a_logarithm_are_between_the_ends(values):
    axis = logarithmic(values)
    assert all(min(values) / 1.5 <= tick <= max(values) * 1.5 for tick in axis.ticks)


def test_percents_of_both_signs_are_around_0():
    axis = signed([-0.3, 54.7, 5_579_311.29])
    assert axis.ticks[:3] == (-0.1, 0.0, 0.1) and axis.ticks[-1] == 1e6
    assert 0.0 in signed([0.02, -0.01]).ticks and len(signed([0.02, -0.01]).ticks) > 2


def test_shares_are_those_of_the_scale():
    axis = logarithmic([0.01, 1.0])
    assert [share(axis, v) for v in (0.01, 0.1, 1.0)] == pytest.approx([0, 0.5, 1])
    both = signed([-5.0, 50.0])
    at = np.sign([-5.0, 7.0, 50.0]) * np.log1p(np.abs([-5.0, 7.0, 50.0]) / SYMLOG)
    assert share(both, 7.0) == pytest.approx((at[1] - at[0]) / (at[2] - at[0]))
    assert share(linear(), 7.0) == 0.5 and not math.isnan(share(logarithmic([2.0]), 2.0))
