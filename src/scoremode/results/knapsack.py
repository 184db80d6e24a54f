"""The best choice of one option for each item, within a size: an exact multiple-choice knapsack.

Costs add up, sizes add up, and of all choices that fit the one of least cost is wanted (Kellerer,
Pferschy and Pisinger, Knapsack Problems, 2004, chapter 11). Item after item, every reachable size is
kept with the least cost that reaches it, unless a smaller size costs no more. A model's linears have
few sizes, so that few sums of them differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Option:
    """One way to store an item: bytes, and its cost."""

    size: int
    cost: float


@dataclass(frozen=True, eq=False)
class Front:
    """All choices that no other beats: `sizes` int64 [F] rising, their `costs` float64 [F] falling."""

    sizes: NDArray[np.int64]
    costs: NDArray[np.float64]
    # For each item the option of every state behind it, and the state before that.
    _options: list[NDArray[np.int16]]
    _before: list[NDArray[np.int64]]

    def within(self, size: int) -> int | None:
        """The place of the choice of least cost that is no larger than `size`; None if none is."""
        place = int(np.searchsorted(self.sizes, size, side="right")) - 1
        return place if place >= 0 else None

    def choice(self, place: int) -> list[int]:
        """The number of each item's option in the choice at `place`."""
        chosen = []
        for options, before in zip(reversed(self._options), reversed(self._before), strict=True):
            chosen.append(int(options[place]))
            place = int(before[place])
        return chosen[::-1]


def front_of(items: Sequence[Sequence[Option]]) -> Front:
    """The front of all choices of one option for each item. Of equal cost the smaller one stays, of
    equal size and cost the one with the earlier option."""
    sizes, costs = np.zeros(1, np.int64), np.zeros(1)
    chosen, came = [], []
    for options in items:
        reached = np.concatenate([sizes + option.size for option in options])
        cost = np.concatenate([costs + option.cost for option in options])
        number = np.repeat(np.arange(len(options), dtype=np.int16), len(sizes))
        before = np.tile(np.arange(len(sizes)), len(options))
        order = np.lexsort((number, cost, reached))
        reached, cost = reached[order], cost[order]
        # Cheaper than everything that is no larger.
        least = np.minimum.accumulate(np.concatenate([[np.inf], cost[:-1]]))
        kept = cost < least
        sizes, costs = reached[kept], cost[kept]
        chosen.append(number[order][kept])
        came.append(before[order][kept])
    return Front(sizes, costs, chosen, came)
