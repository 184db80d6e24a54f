"""Axes of the report's charts: which scale, and where its ticks are."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["SYMLOG", "Axis", "linear", "logarithmic", "share", "signed"]

# Below it, in percent, a scale of both signs is linear.
SYMLOG = 0.1


@dataclass(frozen=True)
class Axis:
    """A scale and its `ticks`, where they are not left to Vega; `low` and `high` are the ends of
    what it shows, None without anything."""

    kind: Literal["linear", "log", "symlog"]
    ticks: tuple[float, ...]
    low: float | None
    high: float | None


def linear() -> Axis:
    """With ticks where Vega puts them."""
    return Axis("linear", (), None, None)


def logarithmic(values: Iterable[float | None]) -> Axis:
    """Of values above 0: ticks at powers of ten; at 1, 2 and 5 of them where there are few decades."""
    found = [value for value in values if value is not None and value > 0]
    if not found:
        return Axis("log", (), None, None)
    low, high = min(found), max(found)
    decades = math.log10(high / low)
    steps = (
        (1,) if decades >= 2 else (1, 2, 5) if decades > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    )
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = max(1, math.ceil(decades / 8))
    # The padding beyond the ends shows about a tenth more.
    room = 10 ** (decades * 0.05)
    ticks = [float(f"{step}e{power}") for power in powers if power % every == 0 for step in steps]
    return Axis("log", tuple(t for t in ticks if low / room <= t <= high * room), low, high)


def signed(values: Iterable[float | None]) -> Axis:
    """Of percents of both signs: linear near 0, logarithmic further off."""
    found = [value for value in values if value is not None]
    if not found:
        return Axis("symlog", (), None, None)
    low, high = min(*found, 0.0), max(*found, 0.0)
    largest = max(-low, high)
    sizes = [SYMLOG * 10**power for power in range(0, 12) if SYMLOG * 10**power <= largest * 1.3]
    if largest < 3 * SYMLOG:
        sizes = [largest / 2, largest]
        sizes = [float(f"{size:.1g}") for size in sizes if size]
    ticks = [0.0, *sizes, *(-size for size in sizes)]
    inside = sorted({float(f"{t:.6g}") for t in ticks if low * 1.3 <= t <= high * 1.3})
    return Axis("symlog", tuple(inside), low, high)


def share(axis: Axis, value: float) -> float:
    """Where `value` lies on the axis, from 0 at its low end to 1 at its high one."""
    if axis.low is None or axis.high is None or axis.low == axis.high:
        return 0.5
    low, at, high = (_scaled(axis, v) for v in (axis.low, value, axis.high))
    return (at - low) / (high - low)


def _scaled(axis: Axis, value: float) -> float:
    if axis.kind == "log":
        return math.log(value)
    return math.copysign(math.log1p(abs(value / SYMLOG)), value)
