"""Runs sorted by what may be compared: those of one plan, one softmax width and one base together."""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.results.record.shape import value_at

__all__ = ["grouped"]


def grouped(records: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Which of `records` belong together, by their places; groups in the order of their first.

    Runs without a base join those of their plan that have one, if these have one and the same.
    """
    groups: dict[tuple[str, str | None], list[int]] = {}
    for i, record in enumerate(records):
        groups.setdefault((_plan(record), _base(record)), []).append(i)
    for plan, base in list(groups):
        others = [key for key in groups if key[0] == plan and key[1] is not None]
        if base is None and len(others) == 1:
            groups[others[0]] = sorted(groups[others[0]] + groups.pop((plan, None)))
    return sorted(groups.values())


def _plan(record: Mapping[str, Any]) -> str:
    width = value_at(record, "engine.vocabulary")
    return f"{record['plan']['sha256']} {width} {record['corpus']['text']['sha256']}"


def _base(record: Mapping[str, Any]) -> str | None:
    return None if "reference" not in record else str(value_at(record, "reference.sha256"))
