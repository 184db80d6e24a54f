"""A run's context: what was asked for, what it is done with, and who is told meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Engine
from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request, TotalProgress
from scoremode.runs.watching import Watch
from scoremode.startup.clock import StageClock
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.runs.baselines import Baseline

__all__ = ["RunContext"]


@dataclass(frozen=True, eq=False)
class RunContext:
    """A run with all that it needs from its start to its end.

    - `engine`: has the `checkpoint` loaded; `baseline`: what it is compared with.
    - `progress`: called with window tokens of all models, done and in all.
    - `notify`: called with a line for the user; `clock`: counts the seconds of its stages.
    - `watch`: called with the estimates of the passes done, after each; None where nobody looks.
    """

    request: Request
    checkpoint: Checkpoint
    planned: PlannedText
    engine: Engine
    baseline: "Baseline | None" = None
    progress: TotalProgress = lambda *_: None
    notify: Callable[[str], None] = lambda _: None
    clock: StageClock = field(default_factory=StageClock)
    watch: Watch | None = None

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    @property
    def models(self) -> int:
        """Models that go through every pass: the measured one, and a base that runs beside it."""
        return 1 if self.baseline is None else 1 + self.baseline.runs
