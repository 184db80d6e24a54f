"""The ranks but the first: the same preparation, then their share of every pass.

They open the same files and cut the same plan beside the first rank, prove that to it, and from then on
do what it tells them. They write nothing and show nothing; one of each other machine hashes its files.
"""

from typing import TYPE_CHECKING

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Extras
from scoremode.engines.torch.ranks.commands import End, LookFor, ScoreVariant
from scoremode.runs.context import RunContext
from scoremode.runs.identity import identity_of
from scoremode.runs.nodes import look_for, tell_files
from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request
from scoremode.runs.scoring import EngineFactory

if TYPE_CHECKING:
    from scoremode.runs.baselines import Baseline

__all__ = ["follow_plan"]


def follow_plan(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    make_engine: EngineFactory,
    baseline: "Baseline | None",
) -> None:
    """`run_plan` on another rank than the first: returns when that one needs nothing more."""
    ranks, engine = request.ranks, make_engine(checkpoint, planned.vocabulary)
    assert ranks is not None
    ranks.agree(identity_of(RunContext(request, checkpoint, planned, engine, baseline)))

    def check() -> None:
        checkpoint.check_unchanged()
        if baseline is not None and baseline.checkpoint is not None:
            baseline.checkpoint.check_unchanged()

    ranks.check = check
    tell_files(ranks, checkpoint, baseline)
    floor = None
    if request.noise_floor is not None and baseline is not None:
        from scoremode.runs.noise import NoiseFloor

        floor = NoiseFloor(request.noise_floor, baseline, planned, request.options, ranks)
    plan = planned.plan
    while not isinstance(command := ranks.command(), End):
        if isinstance(command, ScoreVariant):
            assert floor is not None
            floor.follow(command.index)
            continue
        if isinstance(command, LookFor):
            look_for(ranks, command)
            continue
        schedule, part = command.schedule, plan
        if command.windows < len(plan):
            part = plan.first_windows(command.windows)
        reference = None if baseline is None else baseline.reference(part, schedule, None)
        extras = Extras(reference, request.full)
        list(engine.score(part, schedule, command.first_pass, extras=extras))
