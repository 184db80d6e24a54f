"""A base that is a file of log-probabilities, as llama-perplexity writes it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from scoremode.engines.base import Options, Progress, Schedule
from scoremode.errors import ReferenceUnusable
from scoremode.lib.tasks import Task
from scoremode.llama_cpp.file import Contents, LogitsFile
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.reference.base import Reference
from scoremode.results.scores import Scores
from scoremode.text.plan import Plan

__all__ = ["LlamaCppBaseline", "file_facts"]


class LlamaCppBaseline:
    """The file of `reference`, which must hold every target of `plan`. Raises ReferenceUnusable."""

    runs = 0
    checkpoint = None

    def __init__(self, reference: LlamaCppReference, plan: Plan):
        self._file, self._reference = reference.file, reference
        self.vocabulary = reference.vocabulary
        self._file.check_plan(plan)

    @cached_property
    def _contents(self) -> Task[Contents]:
        return Task(self._file.read_all)

    def identity(self) -> dict[str, Any]:
        return {"kind": "llama.cpp", "fingerprint": self._file.fingerprint}

    def beside(self, options: Options) -> Options:
        """Takes no more of a device than what is counted for any base: a tile of logits."""
        return options

    def prove(self) -> None:
        """Begins to read the file through: there is nothing behind it that would have to come back."""
        _ = self._contents

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        return self._reference

    def section(self) -> dict[str, Any]:
        file = self._file
        return {
            "kind": "llama.cpp",
            "source": str(file.path),
            "path": str(file.path.resolve()),
            # Which model, text and BOS rule made it is not in the file.
            "checkpoint": None,
            **file_facts(file),
        }

    def settle(self) -> dict[str, str]:
        self._file.check_unchanged()
        return {self._file.path.name: self._contents.result().sha256}

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        assert scores.against is not None
        rows = np.arange(begin, begin + len(scores))
        stored = self._file.stored_logprob(rows, scores.target)
        differ = np.flatnonzero(scores.against.base_logprob != stored)
        if len(differ):
            i = int(differ[0])
            raise ReferenceUnusable(
                f"{self._file.path}: row {begin + i} gives target {scores.target[i]} the "
                f"log-probability {stored[i]}, and the engine has {scores.against.base_logprob[i]} "
                f"({len(differ)} of {len(rows)} differ)"
            )

    def finish(self) -> dict[str, Any]:
        return file_facts(self._file, self._contents.result())

    def close(self) -> None:
        """Nothing computes."""


def file_facts(file: LogitsFile, contents: Contents | None = None) -> dict[str, Any]:
    """What a record has of a file; of its `contents` the hash and how coarse it is: an entry is off by
    up to half a step, and what would lie deeper than the reach below a row's largest entry was raised
    to it."""
    facts: dict[str, Any] = {
        "fingerprint": file.fingerprint,
        "n_ctx": file.n_ctx,
        "chunks": file.chunks,
        "rows": file.rows,
        "vocabulary": file.entries,
    }
    if contents is not None:
        facts |= {
            "sha256": contents.sha256,
            "step_nats": contents.step,
            "reach_nats": contents.reach,
            "checksum": "none in the file; each row adds up to 1 within its steps",
        }
    return facts
