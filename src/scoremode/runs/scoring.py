"""One engine over a whole plan: made from its options, and run in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.background.imports import libraries
from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.engines.base import Engine, Extras
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.processes import run_apart
from scoremode.results.scores import Scores, concatenate
from scoremode.runs.planning import PlannedText

if TYPE_CHECKING:
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.engines.vllm.engine import VllmOptions

__all__ = ["EngineFactory", "Job", "Run", "engine_factory", "score_apart"]

EngineFactory = Callable[[Checkpoint, int | None], Engine]


def engine_factory(
    options: "TorchOptions | VllmOptions",
    planned: PlannedText,
    notify: Callable[[str], None],
    ranks: "Ranks | None" = None,
) -> EngineFactory:
    """Makes the engine that `options` are of; the torch engine as one of `ranks`, where there are some.

    Only the engine that is wanted is imported. Waits for the imports that have begun beside, so that
    from here on there is one thread that imports.
    """
    libraries.wait()
    from scoremode.engines.torch.options import TorchOptions

    if isinstance(options, TorchOptions):
        from scoremode.engines.torch.builder import build_engine

        def torch_engine(checkpoint: Checkpoint, vocabulary: int | None) -> Engine:
            engine = build_engine(checkpoint, options, vocabulary)
            if ranks is None:
                return engine
            from scoremode.engines.torch.ranks.engine import RankedEngine

            return RankedEngine(engine, ranks)

        return torch_engine
    from scoremode.engines.vllm.engine import VllmEngine

    def vllm_engine(checkpoint: Checkpoint, vocabulary: int | None) -> Engine:
        return VllmEngine(checkpoint, options, planned.plan, vocabulary, notify)

    return vllm_engine


@dataclass(frozen=True)
class Job:
    """What one engine's process is given: a model as it was seen, how to run it, and its windows.

    `reference`: the folder of a base to compare with, or None.
    """

    model: str
    revision: str | None
    fingerprint: str
    options: "TorchOptions | VllmOptions"
    planned: PlannedText
    reference: Path | None = None


@dataclass(frozen=True)
class Run:
    """What one engine's process came back with: Scores of all windows, and `Engine.describe`."""

    scores: Scores
    engine: dict[str, Any]


def score_apart(
    label: str, job: Job, *, receive: Callable[[tuple[str, Any]], None] = lambda _: None
) -> Run:
    """Runs the job in a process of its own: a model may fill the memory, and vLLM keeps process-wide
    state.

    `receive`: gets ("progress", window tokens done), ("notify", a line for the user) and ("stage", the
    one that begins). Raises ScoremodeError with `label` in front.
    """
    return run_apart(label, _score, job, receive=receive)


def _score(send: Callable[[Any], None], job: Job) -> Run:
    """In the child: one engine over all windows of the job's plan."""
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
        send(("stage", "score"))
        send(("progress", 0.0))
        parts = engine.score(
            plan,
            engine.schedule(plan),
            progress=lambda tokens: send(("progress", tokens)),
            extras=_extras(job),
        )
        scores = concatenate(list(parts))
        checkpoint.check_unchanged()
        return Run(scores, engine.describe())
    finally:
        engine.close()


def _extras(job: Job) -> Extras:
    if job.reference is None:
        return Extras()
    from scoremode.reference.stored import StoredReference

    return Extras(StoredReference(job.reference))
