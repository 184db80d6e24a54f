"""Numbers of tables and of charts."""

import math

from scoremode.report.page.gathered.numbers import drawn, measured, measured_at, rounded
from scoremode.results.statistics.bootstrap import Metric


def test_charts_have_seven_digits_and_nothing_that_json_has_not():
    assert drawn(math.pi * 1e-9) == 3.141593e-09 == rounded(math.pi * 1e-9)
    assert [drawn(x) for x in (None, math.nan, math.inf, -math.inf)] == [None] * 4
    assert drawn(0.0) == 0.0


def test_a_metric_in_full():
    made = {"value": 0.1 + 0.2, "lower": 0.25, "upper": 0.5, "n": 3, "note": None}
    assert measured(Metric(0.1 + 0.2, (0.25, 0.5), 3)) == made
    kept = {"kld": {"value": 0.1 + 0.2, "ci95": [0.25, 0.5], "n": 3, "note": None}}
    assert measured_at(kept, "kld") == made and measured_at(kept, "ppl") is None
    without = measured(Metric(1.0, None, 3, "too few"))
    assert (without["lower"], without["upper"], without["note"]) == (None, None, "too few")
