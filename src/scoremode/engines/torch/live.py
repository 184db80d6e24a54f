"""A base model in the same process: its states are computed when they are compared with."""

from collections.abc import Sequence

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
        # Of the windows of a pass that have yet to be compared with.
        self._states: dict[Span, torch.Tensor] = {}

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Of one span: windows that go through the head together (`TorchEngine.score_groups`).

        All of a pass are computed when its first ones are wanted, and each is let go when it was.
        """
        (span,) = spans
        if span not in self._states:
            self._compute(span)
        return HeadLogits(self._engine.head, self._states.pop(span).to(device), tile)

    def _compute(self, span: Span) -> None:
        offsets, passes = self._plan.offsets, self._schedule.passes(self._plan)
        windows = next(w for w in passes if offsets[w.start] <= span[0] < offsets[w.stop])
        groups = self._engine.score_groups(self._plan, self._schedule, windows)
        spans = [(int(offsets[g.start]), int(offsets[g.stop])) for g in groups]
        assert span in spans, f"{span} are not the rows of a group, which are {spans}"
        states = self._engine.final_states(self._plan, self._schedule, windows, self._progress)
        self._states = dict(zip(spans, states, strict=True))
        if self._progress:
            self._progress(self._engine.head_work(self._plan, windows))
