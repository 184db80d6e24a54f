"""Two models' answers: flips, McNemar's exact test, and the interval of the difference."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from scoremode.results.statistics.paired_answers import mcnemar, paired_answers


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
