"""One engine for all texts of a model, and none left behind when the next model comes."""

import gc
from collections.abc import Iterator
from typing import Any

from scoremode.engines.base import Engine, Extras, Progress, Schedule
from scoremode.lib import fallback
from scoremode.reference.keeper import HeadTensors
from scoremode.results.scores import Scores
from scoremode.text.plan import Plan

__all__ = ["LentEngine", "free_device"]


class LentEngine:
    """An engine as one run has it: what it counts begins with the run, and `end` lets go of it.

    After that it still describes itself, for the run's record.
    """

    def __init__(self, engine: Engine, *, is_new: bool):
        self._engine: Engine | None = engine
        self.vocabulary = engine.vocabulary
        self._identity = engine.identity()
        before = {} if is_new else engine.describe()
        self._tokens, self._seconds = before.get("tokens", 0), before.get("seconds", {})
        self._described: dict[str, Any] | None = None

    @property
    def _lent(self) -> Engine:
        assert self._engine is not None, "an engine is used that was given back"
        return self._engine

    def schedule(self, plan: Plan) -> Schedule:
        return self._lent.schedule(plan)

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        return self._lent.score(plan, schedule, first_pass, progress, extras)

    def head_tensors(self) -> HeadTensors:
        return self._lent.head_tensors()

    def identity(self) -> dict[str, Any]:
        return self._identity

    def describe(self) -> dict[str, Any]:
        if self._described is not None:
            return self._described
        found = self._lent.describe()
        seconds = {k: s - self._seconds.get(k, 0.0) for k, s in found["seconds"].items()}
        return {**found, "tokens": found["tokens"] - self._tokens, "seconds": seconds}

    def end(self) -> None:
        """Lets go of the engine."""
        if self._engine is not None:
            self._described, self._engine = self.describe(), None

    def close(self) -> None:
        """Does nothing: whoever lends the engine closes it."""


def free_device() -> None:
    """Gives a GPU's memory back that nothing holds any more, and begins what is counted of it, and of
    its kernels, anew: both are the process's, and a record is of one model."""
    import torch

    # A model's modules and hooks refer to each other in circles.
    gc.collect()
    fallback.forget()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
