"""Work for an engine: windows of one pass, and all that they are scored by."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from scoremode.engines.base import Extras, Progress, Schedule
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    # They need torch, which a plan alone does not.
    import torch

    from scoremode.reference.base import Reference, Span

__all__ = ["StatesKeeper", "Work"]


class StatesKeeper(Protocol):
    """A place for final states: a run's Keeper, or one rank's rows of its file."""

    def put(self, number: int, states: Sequence["torch.Tensor"]) -> None:
        """Takes the states [N, D] of each micro-batch of the pass `number`."""
        ...


@dataclass(frozen=True, eq=False)
class Work:
    """Whole micro-batches of the pass `number` of a plan.

    - `progress`: called with window tokens whose work is done.
    - `reference`: the base to compare with; `full`: with all that costs a second pass over the logits.
    - `keeper`: takes the final states.
    """

    plan: Plan
    schedule: Schedule
    number: int
    windows: range
    progress: Progress = lambda _: None
    reference: "Reference | None" = None
    full: bool = False
    keeper: StatesKeeper | None = None

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
        wanted = extras.reference, extras.full, extras.keeper
        passes = list(enumerate(schedule.passes(plan)))[first_pass:]
        return [cls(plan, schedule, i, windows, progress, *wanted) for i, windows in passes]

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

    def cut(self, most: int) -> list[Self]:
        """Parts of at most so many windows, or of one micro-batch that has more."""
        return [self.part(run) for run in self.schedule.runs(self.plan, self.windows, most)]
