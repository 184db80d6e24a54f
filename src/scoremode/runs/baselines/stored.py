"""A base that `scoremode reference` kept."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from scoremode.engines.base import Options, Progress, Schedule
from scoremode.head.project import Head
from scoremode.lib.tasks import Task
from scoremode.reference.base import Reference
from scoremode.reference.ordered import OrderedReference
from scoremode.reference.replay import Replay, compare_base, replay
from scoremode.reference.stored import StoredReference
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import logits_of
from scoremode.runs.baselines.base import base_sha256
from scoremode.runs.planning import PlannedText, check_same_tokens
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan

__all__ = ["StoredBaseline"]


class StoredBaseline:
    """A reference on disk; `is_captured`: made for this run, which names the model instead."""

    runs = 0
    checkpoint = None

    def __init__(
        self,
        stored: StoredReference,
        planned: PlannedText,
        corpus: Corpus,
        *,
        is_captured: bool = False,
    ):
        self.stored = stored
        self.vocabulary = stored.vocabulary
        # It has all windows, of which a run that a rule may stop draws some.
        plan = planned.plan.in_text_order()
        whole = replace(planned, plan=plan if plan.conversation is None else plan.arranged())
        _check_tokens(stored, whole)
        check_same_plan(whole.to_json(corpus), stored.record, str(stored.path))
        self._ordered = None
        if planned.plan.protocol.seed is not None:
            self._ordered = OrderedReference(stored, planned.plan)
        self._is_captured = is_captured
        # vLLM's workers have theirs to themselves: there the replay runs on the CPU.
        self._device = torch.device("cpu")
        self._at_load: Replay | None = None
        self._all: Replay | None = None
        self._head: Task[Head] | None = None

    @cached_property
    def _files(self) -> Task[None]:
        return Task(self.stored.check_files)

    def identity(self) -> dict[str, Any]:
        return {"kind": "stored", "sha256": self.stored.sha256}

    def beside(self, options: Options) -> Options:
        return options.sharing(self._hold)

    def _hold(self, device: torch.device) -> int:
        self._device = device
        if device.type != "cuda":
            return 0
        # A gigabyte from a mapped file, which the first pass would wait for.
        self._head = Task(partial(self.stored.head, device))
        return self.stored.held_bytes(device)

    def prove(self) -> None:
        # Hashed meanwhile.
        _ = self._files
        if self._head is not None:
            self._head.result()
            # The reference has it, for as long as it is needed.
            self._head = None
        self._at_load = replay(self.stored, self._device)

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        return self._ordered or self.stored

    def section(self) -> dict[str, Any]:
        record = self.stored.record
        names = ("source", "path", "fingerprint", "files", "bits_per_weight", "bytes", "gib")
        return {
            "kind": "model" if self._is_captured else "stored",
            "source": record["checkpoint"]["source"]
            if self._is_captured
            else str(self.stored.path),
            "sha256": base_sha256(record["checkpoint"]["files"], record["identity"]["engine"]),
            "states_sha256": self.stored.sha256,
            "checkpoint": {k: v for k, v in record["checkpoint"].items() if k in names},
            "tokenizer": record["tokenizer"],
            "engine": record["engine"],
            "metrics": record["metrics"],
            "head": record["kept"]["head"],
            "replay_at_load": None if self._at_load is None else self._at_load.to_json(),
        }

    def settle(self) -> None:
        return self._files.result()

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        assert scores.against is not None
        logprob, rows = scores.against.base_logprob, None
        if self._ordered is not None:
            rows = self._ordered.rows(begin, begin + len(scores))
        found = compare_base(self.stored, begin, logprob, logits_of(engine), rows)
        self._all = found if self._all is None else self._all.joined(found)

    def finish(self) -> dict[str, Any]:
        # Of a resumed run only the passes since: those before were checked then.
        return {"replay": None if self._all is None else self._all.to_json()}

    def close(self) -> None:
        """Nothing computes; what reads ahead goes with the reference."""


def _check_tokens(stored: StoredReference, planned: PlannedText) -> None:
    """Raises ReferenceUnusable where its plan is another by its tokens alone, with the first."""
    record = stored.record
    if (
        record["plan"]["sha256"] == planned.plan.sha256
        or record["protocol"]["sha256"] != planned.plan.protocol.sha256
        or record["kept"].get("tokens") is None
    ):
        return
    tokens, text = stored.plan().tokens, record["corpus"]["text"]["sha256"]
    chat = record["corpus"].get("conversations")
    # By the names that this run's tokenizer has: the reference's may be gone.
    check_same_tokens(planned, tokens, text, str(stored.path), planned.tokenizer, chat)
