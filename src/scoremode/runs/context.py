"""A run's context: what was asked for, what it is done with, and who is told meanwhile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Engine, Options
from scoremode.errors import EngineError
from scoremode.results.record.section import first_difference
from scoremode.results.record.sections import versions
from scoremode.results.statistics.divergence import CONFIDENT
from scoremode.runs.request import Request, TotalProgress, Watch
from scoremode.startup.clock import StageClock
from scoremode.startup.warmup import libraries
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.runs.baselines import Baseline


def import_engine(options: Options) -> None:
    """Imports what an engine of `options` needs, when the imports that have begun beside are done: from
    here on there is one thread that imports."""
    libraries.wait()
    for name in options.modules:
        import_module(name)


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


def identity_of(context: RunContext) -> dict[str, Any]:
    """Facts that two runs must share to be one, checked field by field before one goes on; and that all
    ranks of a run must share."""
    request = context.request
    identity: dict[str, Any] = {
        "checkpoint": context.checkpoint.fingerprint,
        **context.planned.identity(),
        "engine": context.engine.identity(),
        "versions": versions(),
    }
    if context.baseline is not None:
        identity["reference"] = context.baseline.identity()
        identity |= {"full": request.full, "noise_floor": request.noise_floor}
        if request.draft is not None:
            identity["draft"] = request.draft
        if request.confident != CONFIDENT:
            identity["confident"] = request.confident
    if request.keep is not None:
        identity["keep"] = request.keep
    if request.calibration is not None:
        identity["calibration"] = request.calibration.identity()
    if request.judge is not None:
        identity["tasks"] = request.judge.identity()
    if request.token_text:
        identity["token_text"] = True
    if request.shard is not None:
        identity["shard"] = request.shard.to_json()
    return identity


def agree(ranks: "Ranks", identity: Mapping[str, Any]) -> None:
    """Makes sure, on the first rank, that the others would score what this one does, as it does.

    `identity`: as a run's. Raises EngineError.
    """
    ours, *others = [_compared(facts) for facts in ranks.agree(identity)]
    for rank, theirs in enumerate(others, 1):
        if found := first_difference("", theirs, ours):
            field, value, own = found
            title = ranks.title(rank) if ranks.place.spans_nodes else f"rank {rank}"
            raise EngineError(
                f"{title} is not like rank 0: its {field} is {value!r}, rank 0's {own!r}"
            )


def _compared(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity but for the memory, which only the first rank's schedule is made from."""
    engine = identity["engine"]
    device = {k: v for k, v in engine["device"].items() if k != "memory_bytes"}
    return {**identity, "engine": engine | {"device": device}}
