"""A reference whose plan's windows are scored in another order than they were kept in."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.head.project import HeadLogits
from scoremode.reference.base import Span
from scoremode.reference.stored import StoredReference
from scoremode.text.plan import Plan

__all__ = ["OrderedReference"]


class OrderedReference:
    """The rows of `stored`, whose windows were not drawn, by those of `plan`, whose windows are: row r
    of the plan is row `rows[r]` of the reference.

    A window's rows follow each other in both.
    """

    extra_sums = None

    def __init__(self, stored: StoredReference, plan: Plan):
        self.stored, self.vocabulary = stored, stored.vocabulary
        kept = plan.undrawn
        begins = np.empty(len(plan), np.int64)
        begins[kept] = np.cumsum(plan.counts[kept]) - plan.counts[kept]
        self._begins, self._offsets = begins, plan.offsets

    def rows(self, begin: int, end: int) -> NDArray[np.int64]:
        """int64 [end - begin]: the reference's rows of the plan's `begin … end`."""
        rows = np.arange(begin, end)
        window = np.searchsorted(self._offsets, rows, side="right") - 1
        return self._begins[window] + rows - self._offsets[window]

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        """Has a GPU fetch the head; states are fetched when they are asked for."""
        self.stored.expect([(0, 0)], device)

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Gives the logits of the plan's rows `spans`, one behind the other."""
        kept: list[Span] = []
        for begin, end in spans:
            first = int(np.searchsorted(self._offsets, begin, side="right")) - 1
            while begin < end:
                stop = min(end, int(self._offsets[first + 1]))
                row = int(self._begins[first]) + begin - int(self._offsets[first])
                kept.append((row, row + stop - begin))
                begin, first = stop, first + 1
        return self.stored.logits(kept, device, tile)
