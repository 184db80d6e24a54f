"""Numbers as the report's data has them: whole in tables, rounded in charts, never NaN."""

import math
from collections.abc import Mapping
from typing import Any

from scoremode.report.page.definition import Measured
from scoremode.results.statistics.bootstrap import Metric

__all__ = ["drawn", "measured", "measured_at", "rounded"]


def drawn(value: float | None) -> float | None:
    """A number of a chart: to 7 significant digits, None where it is none or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return rounded(value)


def rounded(value: float) -> float:
    """A number that is known to be finite, to 7 significant digits."""
    return float(f"{value:.7g}")


def measured(metric: Metric) -> Measured:
    """A metric in full."""
    lower, upper = metric.ci95 or (None, None)
    return {
        "value": metric.value,
        "lower": lower,
        "upper": upper,
        "n": metric.n,
        "note": metric.note,
    }


def measured_at(metrics: Mapping[str, Any], name: str) -> Measured | None:
    """The record's metric of that name, None where it has none."""
    if (found := metrics.get(name)) is None:
        return None
    ends = found["ci95"]
    return measured(
        Metric(found["value"], tuple(ends) if ends else None, found["n"], found["note"])
    )
