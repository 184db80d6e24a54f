"""A base model in the same process: its states are computed when they are compared with."""

from collections.abc import Sequence

import numpy as np
import torch

from scoremode.engines.base import Progress, Schedule
from scoremode.engines.torch.engine import TorchEngine
from scoremode.head.project import HeadLogits
from scoremode.reference.base import Span
from scoremode.text.plan import Plan

__all__ = ["LiveReference"]


class LiveReference:
    """The model of `engine`, run over the same passes of `plan` as the model that is compared."""

    extra_sums = None

    def __init__(
        self, engine: TorchEngine, plan: Plan, schedule: Schedule, progress: Progress | None = None
    ):
        self._engine, self._plan, self._schedule = engine, plan, schedule
        self._progress = progress
        # Of the spans that are expected and have yet to be asked for.
        self._states: dict[Span, torch.Tensor] = {}

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        offsets = self._plan.offsets
        first, last = np.searchsorted(offsets, [spans[0][0], spans[-1][1]]).tolist()
        windows = range(first, last)
        batches = self._schedule.batches(self._plan, windows)
        rows = [(int(offsets[b.start]), int(offsets[b.stop])) for b in batches]
        assert rows == list(spans), f"{spans} are not the rows of micro-batches, which are {rows}"
        states = self._engine.final_states(self._plan, self._schedule, windows, self._progress)
        self._states = dict(zip(rows, states, strict=True))
        if self._progress:
            self._progress(self._engine.head_work(self._plan, windows))

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """The logits of one span that was expected, whose states are let go with it."""
        (span,) = spans
        return HeadLogits(self._engine.head, self._states.pop(span).to(device), tile)
