"""Windows scored again, by an engine of this process or in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.base import Engine, Extras, Options, Progress, Schedule
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.lib.processes import run_apart
from scoremode.results.scores import Scores, check, concatenate
from scoremode.runs.context import engine_factory
from scoremode.runs.planning import PlannedText
from scoremode.text.plan import Plan


@dataclass(frozen=True, eq=False)
class Rescored:
    """Scores of all windows of a plan, and `Engine.describe` of what scored them."""

    scores: Scores
    engine: dict[str, Any]


def rescore(
    engine: Engine,
    plan: Plan,
    schedule: Schedule | None = None,
    *,
    extras: Extras | None = None,
    progress: Progress | None = None,
) -> Rescored:
    """Scores all windows of a plan by an engine, in its own schedule where none is given.

    Raises InvalidMeasurement for scores that contradict the plan or themselves.
    """
    schedule = schedule or engine.schedule(plan)
    parts = engine.score(plan, schedule, progress=progress, extras=extras or Extras())
    scores = concatenate(list(parts))
    check(scores, plan, range(len(plan)))
    return Rescored(scores, engine.describe())


@dataclass(frozen=True)
class Job:
    """A task for one engine's process: a model as it was seen, how to run it, and its windows.

    `reference`: the folder of a base to compare with, or None.
    """

    model: ModelFiles
    fingerprint: str
    options: Options
    planned: PlannedText
    reference: Path | None = None


def rescore_apart(
    label: str, job: Job, *, receive: Callable[[tuple[str, Any]], None] = lambda _: None
) -> Rescored:
    """Runs the job in a process of its own: a model may fill the memory, and vLLM keeps process-wide
    state.

    `receive`: gets ("progress", window tokens done), ("notify", a line for the user) and ("stage", the
    one that begins). Raises ScoremodeError with `label` in front.
    """
    return run_apart(label, _rescore, job, receive=receive)


def _rescore(send: Callable[[Any], None], job: Job) -> Rescored:
    """Runs, in the child, one engine over all windows of the job's plan."""
    checkpoint = open_checkpoint(job.model, code=job.options.trust_remote_code)
    if checkpoint.fingerprint != job.fingerprint:
        raise CheckpointError(f"{checkpoint.source}: has changed since it was opened")
    plan = job.planned.plan
    send(("stage", "import"))
    make = engine_factory(job.options, job.planned, lambda line: send(("notify", line)))
    send(("stage", "engine"))
    engine = make(checkpoint, job.planned.vocabulary)
    try:
        largest = int(plan.tokens.max())
        if largest >= engine.vocabulary:
            raise TokenizerError(
                f"the text has token id {largest}, and the softmax runs over {engine.vocabulary}"
            )
        extras = Extras()
        if job.reference is not None:
            from scoremode.reference.stored import StoredReference

            extras = Extras(StoredReference(job.reference))
        send(("stage", "score"))
        send(("progress", 0.0))
        rescored = rescore(
            engine, plan, extras=extras, progress=lambda tokens: send(("progress", tokens))
        )
        checkpoint.check_unchanged()
        return rescored
    finally:
        engine.close()
