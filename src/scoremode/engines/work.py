"""Work for an engine: windows of one pass, and all that they are scored by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from scoremode.engines.base import Extras, Progress, Schedule
from scoremode.text.batching import passes_of
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    # They need torch, which a plan alone does not.
    import torch

    from scoremode.reference.base import Span

__all__ = ["Work"]


@dataclass(frozen=True, eq=False)
class Work:
    """Whole micro-batches of the pass `number` of a plan.

    - `progress`: called with window tokens whose work is done.
    - `extras`: all that is wanted of the pass beside its scores.
    - `put`: takes the final states, [N, D] for each micro-batch; None where they are not kept.
    """

    plan: Plan
    schedule: Schedule
    number: int
    windows: range
    progress: Progress = lambda _: None
    extras: Extras = field(default_factory=Extras)
    put: "Callable[[Sequence[torch.Tensor]], None] | None" = None

    @classmethod
    def passes(
        cls,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> list[Self]:
        """Each pass from `first_pass` on, as `Engine.score` is asked for them."""
        progress, extras = progress or (lambda _: None), extras or Extras()
        passes = []
        for i, windows in list(enumerate(schedule.passes(plan)))[first_pass:]:
            put = None if extras.keeper is None else partial(extras.keeper.put, i)
            passes.append(cls(plan, schedule, i, windows, progress, extras, put))
        return passes

    @property
    def batches(self) -> list[range]:
        """The windows of each micro-batch."""
        return self.schedule.batches(self.plan, self.windows)

    @property
    def spans(self) -> "list[Span]":
        """The rows of each micro-batch among the plan's scored targets."""
        offsets = self.plan.offsets
        return [(int(offsets[b.start]), int(offsets[b.stop])) for b in self.batches]

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return int(self.plan.lengths[self.windows.start : self.windows.stop].max())

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return int(self.plan.lengths[self.windows.start : self.windows.stop].sum())

    def part(self, windows: range) -> Self:
        """Some whole micro-batches of it."""
        return replace(self, windows=windows)

    @property
    def sizes(self) -> list[int]:
        """Tokens of each micro-batch, with what fills it up."""
        return [self.schedule.size(self.plan, batch) for batch in self.batches]

    def cut_at(self, tokens: int) -> list[Self]:
        """Parts of at most so many tokens with what fills them up, or of one micro-batch that has
        more."""
        most = len(self.windows)
        runs = passes_of(self.batches, self.sizes, tokens=tokens, most=most)
        return [self.part(run) for run in runs]

    def cut(self, most: int) -> list[Self]:
        """Parts of at most so many windows, or of one micro-batch that has more."""
        runs: list[range] = []
        for batch in self.batches:
            if runs and batch.stop - runs[-1].start <= most:
                runs[-1] = range(runs[-1].start, batch.stop)
            else:
                runs.append(batch)
        return [self.part(run) for run in runs]
