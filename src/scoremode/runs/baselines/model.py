"""A base that runs in the same process, pass by pass."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Options, Progress, Schedule
from scoremode.engines.torch.base_model import ModelReference
from scoremode.lib.tasks import Task
from scoremode.reference.base import Reference, Span
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.results.scores import Scores
from scoremode.runs.baselines.base import base_sha256
from scoremode.runs.planning import PlannedText, check_same_tokens, plan_text
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan

__all__ = ["ModelBaseline"]


class ModelBaseline:
    """A model in the same process, by an `engine` of the same options.

    - `kept`: gets the final states [N, D] of each micro-batch of a plan of one pass, by their rows;
      None where nobody wants them once more.
    """

    runs = 1

    def __init__(
        self,
        model: str,
        planned: PlannedText,
        corpus: Corpus,
        options: Options,
        revision: str | None,
        tokenizer: str | None,
    ):
        self.checkpoint = open_checkpoint(model, revision, code=options.trust_remote_code)
        own = plan_text(
            corpus, planned.plan.protocol, model=model, tokenizer=tokenizer, revision=revision
        )
        self._planned = own
        tokens, text = own.plan.tokens, own.text_sha256
        check_same_tokens(planned, tokens, text, model, own.tokenizer, own.chat)
        check_same_plan(planned.to_json(corpus), own.to_json(corpus), model)
        # Over its own entries, as it would be captured: cut to the model's it were another softmax.
        self.engine = options.make_base(
            self.checkpoint, own.vocabulary, int(own.plan.lengths.max())
        )
        self.vocabulary = self.engine.vocabulary
        self.kept: dict[Span, torch.Tensor] | None = None

    @cached_property
    def _files(self) -> Task[dict[str, str]]:
        return Task(self.checkpoint.hash_files)

    def identity(self) -> dict[str, Any]:
        return {
            "kind": "model",
            "checkpoint": self.checkpoint.fingerprint,
            "engine": self.engine.identity(),
        }

    def beside(self, options: Options) -> Options:
        """The base was placed first, as if it were alone; the model has what that leaves."""
        return options.sharing(lambda _: self.engine.held_bytes(self._planned.plan))

    def prove(self) -> None:
        """Nothing is stored that would have to come back. Its files are hashed meanwhile."""
        _ = self._files

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        kept = self.kept if len(schedule.passes(plan)) == 1 else None
        return ModelReference(self.engine, plan, schedule, progress, kept)

    def section(self) -> dict[str, Any]:
        from scoremode.schemes.summary import stored_summary

        summary = stored_summary(self.checkpoint)
        return {
            "kind": "model",
            "source": self.checkpoint.source,
            "checkpoint": {
                "source": self.checkpoint.source,
                "path": self.checkpoint.place,
                "fingerprint": self.checkpoint.fingerprint,
                "bits_per_weight": summary["bits_per_weight"],
                "bytes": summary["bytes"],
                "gib": summary["gib"],
            },
            "tokenizer": self._planned.tokenizer.to_json(),
            "engine": self.engine.identity(),
        }

    def settle(self) -> dict[str, str]:
        self.checkpoint.check_unchanged()
        return self._files.result()

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        """Nothing is stored that it could contradict."""

    def finish(self) -> dict[str, Any]:
        engine = self.engine.identity()
        return {
            "engine": self.engine.describe(),
            "sha256": base_sha256(self._files.result(), engine),
        }

    def close(self) -> None:
        self.engine.close()
