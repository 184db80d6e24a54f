"""Runs one engine over a whole plan: made from its options, and run in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.engines.base import Engine, Extras, Options
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.lib.processes import run_apart
from scoremode.results.scores import Scores, concatenate
from scoremode.runs.planning import PlannedText
from scoremode.startup.imports import libraries

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks

__all__ = ["EngineFactory", "EngineRun", "Job", "engine_factory", "score_apart"]

EngineFactory = Callable[[Checkpoint, int | None], Engine]


def engine_factory(
    options: Options,
    planned: PlannedText,
    notify: Callable[[str], None],
    ranks: "Ranks | None" = None,
) -> EngineFactory:
    """Makes the engine of `options`, as one of `ranks` where there are some.

    Waits for the imports that have begun beside, so that from here on there is one thread that imports.
    """
    libraries.wait()
    for name in options.modules:
        import_module(name)
    return lambda checkpoint, vocabulary: options.make(
        checkpoint, vocabulary, planned.plan, notify, ranks
    )


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
