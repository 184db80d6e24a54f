"""Runs one engine over a whole plan: made from its options, and run in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Extras, Options
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.lib.processes import run_apart
from scoremode.results.scores import Scores, concatenate
from scoremode.runs.context import engine_factory
from scoremode.runs.planning import PlannedText

if TYPE_CHECKING:
    pass

__all__ = ["EngineRun", "Job", "score_apart"]


@dataclass(frozen=True)
class Job:
    """A task for one engine's process: a model as it was seen, how to run it, and its windows.

    `reference`: the folder of a base to compare with, or None.
    """

    model: str
    revision: str | None
    fingerprint: str
    options: Options
    planned: PlannedText
    reference: Path | None = None


@dataclass(frozen=True)
class EngineRun:
    """The answer of one engine's process: Scores of all windows, and `Engine.describe`."""

    scores: Scores
    engine: dict[str, Any]


def score_apart(
    label: str, job: Job, *, receive: Callable[[tuple[str, Any]], None] = lambda _: None
) -> EngineRun:
    """Runs the job in a process of its own: a model may fill the memory, and vLLM keeps process-wide
    state.

    `receive`: gets ("progress", window tokens done), ("notify", a line for the user) and ("stage", the
    one that begins). Raises ScoremodeError with `label` in front.
    """
    return run_apart(label, _score, job, receive=receive)


def _score(send: Callable[[Any], None], job: Job) -> EngineRun:
    """Runs, in the child, one engine over all windows of the job's plan."""
    checkpoint = open_checkpoint(job.model, job.revision, code=job.options.trust_remote_code)
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
        parts = engine.score(
            plan,
            engine.schedule(plan),
            progress=lambda tokens: send(("progress", tokens)),
            extras=extras,
        )
        scores = concatenate(list(parts))
        checkpoint.check_unchanged()
        return EngineRun(scores, engine.describe())
    finally:
        engine.close()
