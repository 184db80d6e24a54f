"""What every engine offers: windows in, Scores out, a pass at a time."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scoremode.errors import EngineError
from scoremode.results.scores import Scores
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    # They need torch, which a plan alone does not.
    from scoremode.reference.base import Reference
    from scoremode.reference.keeper import HeadTensors, Keeper

__all__ = ["Engine", "Extras", "OutOfMemory", "Progress", "Schedule"]

# Called with the number of window tokens whose work is done since the last call, in fractions.
Progress = Callable[[float], None]


class OutOfMemory(EngineError):
    """The device has too little memory for the schedule; a smaller micro-batch may fit."""


@dataclass(frozen=True)
class Schedule:
    """How windows are grouped. Stored with a run, so that a resumed one groups them alike.

    - `pass_windows`: windows that go through all layers together; the unit of progress.
    - `batch_windows`: windows that go through one layer together.
    """

    pass_windows: int
    batch_windows: int

    def passes(self, plan: Plan) -> list[range]:
        """The windows of each pass."""
        n = len(plan)
        return [range(i, min(i + self.pass_windows, n)) for i in range(0, n, self.pass_windows)]

    def batches(self, plan: Plan, windows: range) -> list[range]:
        """The windows of each micro-batch of a pass: neighbours of equal length, never padded."""
        batches = []
        begin = windows.start
        for w in range(windows.start + 1, windows.stop + 1):
            if (
                w == windows.stop
                or w - begin == self.batch_windows
                or plan.lengths[w] != plan.lengths[begin]
            ):
                batches.append(range(begin, w))
                begin = w
        return batches

    def halved(self) -> "Schedule":
        """The same passes in micro-batches of half the windows, at least one."""
        return Schedule(self.pass_windows, max(1, self.batch_windows // 2))

    def runs(self, plan: Plan, windows: range, most: int) -> list[range]:
        """Neighbouring micro-batches of a pass, of at most so many windows where one has no more."""
        runs: list[range] = []
        for batch in self.batches(plan, windows):
            if runs and batch.stop - runs[-1].start <= most:
                runs[-1] = range(runs[-1].start, batch.stop)
            else:
                runs.append(batch)
        return runs

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Extras:
    """What is wanted beside a model's own scores.

    - `reference`: the base to compare each prediction with; `full`: with all that costs a second
      pass over the logits.
    - `keeper`: where the final states go, to be a reference.
    """

    reference: "Reference | None" = None
    full: bool = False
    keeper: "Keeper | None" = None


class Engine(Protocol):
    """A loaded model that can score plans.

    `vocabulary`: how many entries its softmax runs over.
    """

    @property
    def vocabulary(self) -> int: ...

    def schedule(self, plan: Plan) -> Schedule:
        """The schedule for `plan`, from fixed quantities only: never from free memory."""
        ...

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        """The Scores of each pass from `first_pass` on, in order."""
        ...

    def head_tensors(self) -> "HeadTensors":
        """The model's head over `vocabulary`, as a reference keeps it."""
        ...

    def identity(self) -> dict[str, Any]:
        """Everything about model, arithmetic and device that can move a score."""
        ...

    def describe(self) -> dict[str, Any]:
        """The record's `engine` section: what ran, with memory and seconds a stage so far."""
        ...

    def close(self) -> None:
        """Ends what the engine has started; afterwards it can't score."""
        ...
