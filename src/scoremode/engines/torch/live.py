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

    is_llama_cpp = False

    def __init__(
        self, engine: TorchEngine, plan: Plan, schedule: Schedule, progress: Progress | None = None
    ):
        self._engine, self._plan, self._schedule = engine, plan, schedule
        self._progress = progress

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Of one span, which must be whole windows."""
        (span,) = spans
        first, last = np.searchsorted(self._plan.offsets, span).tolist()
        assert tuple(self._plan.offsets[[first, last]]) == span, f"{span} are no whole windows"
        states = self._engine.final_states(
            self._plan, self._schedule, range(first, last), self._progress
        )
        if self._progress:
            self._progress(self._engine.head_work(self._plan, range(first, last)))
        return HeadLogits(self._engine.head, states.to(device), tile)
