"""A base model in the same process: its states are computed when they are compared with."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch

from scoremode.engines.base import BaseEngine, Progress, Schedule
from scoremode.engines.work import Work
from scoremode.head.project import HeadLogits
from scoremode.reference.base import Span
from scoremode.text.plan import Plan

__all__ = ["ModelReference"]


class ModelReference:
    """The model of `engine`, run over the same passes of `plan` as the model that is compared.

    - `kept`: gets the final states [N, D] of each micro-batch, by their rows.
    """

    extra_sums = None

    def __init__(
        self,
        engine: BaseEngine,
        plan: Plan,
        schedule: Schedule,
        progress: Progress | None = None,
        kept: dict[Span, torch.Tensor] | None = None,
    ):
        self._engine, self._offsets = engine, plan.offsets
        self._passes = Work.passes(plan, schedule, progress=progress)
        self._begins = [work.windows.start for work in self._passes]
        # Of the spans that are expected and have yet to be asked for.
        self._states: dict[Span, torch.Tensor] = {}
        self._kept = kept

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        first, last = np.searchsorted(self._offsets, [spans[0][0], spans[-1][1]]).tolist()
        work = self._passes[bisect_right(self._begins, first) - 1].part(range(first, last))
        rows = work.spans
        assert rows == list(spans), f"{spans} are not the rows of micro-batches, which are {rows}"
        self._states = dict(zip(rows, self._engine.final_states(work), strict=True))
        if self._kept is not None:
            self._kept.update(self._states)
        work.progress(self._engine.head_work(work))

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Logits of one span that was expected, whose states are let go with it."""
        (span,) = spans
        return HeadLogits(self._engine.head, self._states.pop(span).to(device), tile)
