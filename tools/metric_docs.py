"""Writes the two tables of metrics in docs/statistics.md out of `results.metrics.METRICS`.

    python tools/metric_docs.py

A test holds the page against what this makes.
"""

import re
from pathlib import Path

from scoremode.results.metrics import METRICS

PAGE = Path(__file__).parent.parent / "docs" / "statistics.md"
_HEAD = "| metric | better | |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def metric_table(*, base: bool) -> str:
    """The table of the metrics that need a base, or of those that don't; a family is a row."""
    rows = {}
    for metric in METRICS:
        if metric.base == base:
            name = metric.family or f"`{metric.key}`"
            rows.setdefault(name, f"| {name} | {metric.better or ''} | {metric.words} |\n")
    return _HEAD + "".join(rows.values())


def with_tables(page: str) -> str:
    """docs/statistics.md with both tables as they are to be."""
    tables = iter([metric_table(base=False), metric_table(base=True)])
    made, count = _TABLE.subn(lambda _: next(tables), page)
    assert count == 2, "docs/statistics.md: has no two tables of metrics"
    return made


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), encoding="utf-8")
