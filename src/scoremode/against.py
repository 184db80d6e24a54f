"""What a run compares its model with: opened, checked against the plan, proven, described.

A base comes in three kinds. `stored`: states and head that `scoremode reference` kept. `model`: a
checkpoint that runs in the same process, pass by pass. `llama.cpp`: a file of log-probabilities. All
must be of the very same plan: the same token ids under the same protocol over the same vocabulary.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import torch

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.hashing import Beside
from scoremode.engines.base import Progress, Schedule
from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.engine import TorchEngine, TorchOptions
from scoremode.engines.torch.live import LiveReference
from scoremode.errors import ReferenceUnusable
from scoremode.planning import PlannedText, plan_text
from scoremode.reference.base import Reference
from scoremode.reference.replay import Replay, compare_base, logits_of, replay
from scoremode.reference.stored import StoredReference, is_stored
from scoremode.results.sameness import check_same_plan
from scoremode.results.scores import Scores
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan

__all__ = ["Baseline", "open_baseline"]


class Baseline(Protocol):
    """A base of one run.

    - `vocabulary`: entries of its softmax.
    - `runs`: how many models go through every pass because of it: 0, or 1 beside the measured one.
    - `checkpoint`: its own where it is read in this run, else None.
    """

    @property
    def vocabulary(self) -> int: ...

    @property
    def runs(self) -> int: ...

    @property
    def checkpoint(self) -> Checkpoint | None: ...

    def identity(self) -> dict[str, Any]:
        """What two runs must share to be one, and what is known before anything runs."""
        ...

    def prove(self, engine: Mapping[str, Any]) -> None:
        """Makes sure, before anything else runs, that it can be compared with by `engine`, which is
        described as its `identity` does. Raises ReferenceUnusable."""
        ...

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        """What an engine is given."""
        ...

    def section(self) -> dict[str, Any]:
        """The record's section `reference`, as far as it is known before a pass is scored."""
        ...

    def settle(self) -> dict[str, str] | None:
        """Returns when all that it reads is known to be what it was: the files of `checkpoint`, name →
        sha256, where it has one. Raises ReferenceUnusable, CheckpointError."""
        ...

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        """Compares the base's part of a pass, from row `begin` of the plan, with what is known of it.

        `engine`: what scored it. Raises ReferenceUnusable.
        """
        ...

    def finish(self) -> dict[str, Any]:
        """What the section gains at the end."""
        ...


def open_baseline(
    reference: str,
    planned: PlannedText,
    *,
    corpus: Corpus,
    options: Any,
    revision: str | None = None,
) -> Baseline:
    """The base that `reference` names: a reference's folder, a model's folder, or its hub id.

    - `planned`: of the measured model; `options`: of the engine that measures it, which a base in the
      same process takes over.

    Raises ReferenceUnusable where it is of another plan, and all that opening a model raises.
    """
    path = Path(reference)
    if is_stored(path):
        device = options.device if isinstance(options, TorchOptions) else None
        return StoredBaseline(StoredReference(path), planned, corpus, device)
    if not isinstance(options, TorchOptions):
        raise ReferenceUnusable(
            f"{reference}: is a model, and vLLM runs one at a time: capture it first with "
            "scoremode reference"
        )
    return ModelBaseline(reference, planned, corpus, options, revision)


class StoredBaseline:
    """A reference on disk."""

    runs = 0
    checkpoint = None

    def __init__(
        self, stored: StoredReference, planned: PlannedText, corpus: Corpus, device: str | None
    ):
        self.stored = stored
        self.vocabulary = stored.vocabulary
        check_same_plan(planned.to_json(corpus), stored.record, str(stored.folder))
        self._device = device
        self._at_load: Replay | None = None
        self._all: Replay | None = None
        self._files = Beside(stored.check_files)

    def identity(self) -> dict[str, Any]:
        return {"kind": "stored", "sha256": self.stored.sha256}

    def prove(self, engine: Mapping[str, Any]) -> None:
        # vLLM's workers have their device to themselves: there the replay runs on the CPU.
        kind = engine["device"]["type"] if engine["engine"] == "torch" else "cpu"
        index = choose_device(self._device, None, None).torch if kind == "cuda" else kind
        self._at_load = replay(self.stored, torch.device(index))

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        return self.stored

    def section(self) -> dict[str, Any]:
        record = self.stored.record
        names = ("source", "path", "fingerprint", "files", "bits_per_weight", "gib")
        return {
            "kind": "stored",
            "source": str(self.stored.folder),
            "sha256": _base_sha256(record["checkpoint"]["files"], record["identity"]["engine"]),
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
        found = compare_base(self.stored, begin, scores.against.base_logprob, logits_of(engine))
        self._all = found if self._all is None else self._all.joined(found)

    def finish(self) -> dict[str, Any]:
        # Of a resumed run only the passes since: those before were checked then.
        return {"replay": None if self._all is None else self._all.to_json()}


class ModelBaseline:
    """A model in the same process."""

    runs = 1

    def __init__(
        self,
        model: str,
        planned: PlannedText,
        corpus: Corpus,
        options: TorchOptions,
        revision: str | None,
    ):
        self.checkpoint = open_checkpoint(model, revision, code=options.trust_remote_code)
        own = plan_text(corpus, planned.plan.protocol, model=model, revision=revision)
        self._planned = own
        check_same_plan(planned.to_json(corpus), own.to_json(corpus), model)
        self._engine = TorchEngine(self.checkpoint, options, planned.vocabulary)
        self.vocabulary = self._engine.vocabulary
        self._files = Beside(self.checkpoint.hash_files)

    def identity(self) -> dict[str, Any]:
        return {
            "kind": "model",
            "checkpoint": self.checkpoint.fingerprint,
            "engine": self._engine.identity(),
        }

    def prove(self, engine: Mapping[str, Any]) -> None:
        """Nothing is stored that would have to come back."""

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        return LiveReference(self._engine, plan, schedule, progress)

    def section(self) -> dict[str, Any]:
        from scoremode.schemes.summary import stored_summary

        summary = stored_summary(self.checkpoint)
        return {
            "kind": "model",
            "source": self.checkpoint.source,
            "checkpoint": {
                "source": self.checkpoint.source,
                "path": str(self.checkpoint.path.resolve()),
                "fingerprint": self.checkpoint.fingerprint,
                "bits_per_weight": summary["bits_per_weight"],
                "gib": summary["gib"],
            },
            "tokenizer": self._planned.tokenizer.to_json(),
            "engine": self._engine.identity(),
        }

    def settle(self) -> dict[str, str]:
        self.checkpoint.check_unchanged()
        return self._files.result()

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        """Nothing is stored that it could contradict."""

    def finish(self) -> dict[str, Any]:
        engine = self._engine.identity()
        return {
            "engine": self._engine.describe(),
            "sha256": _base_sha256(self._files.result(), engine),
        }


def _base_sha256(files: Mapping[str, str], engine: Mapping[str, Any]) -> str:
    """What two runs must share to be compared with the same base: its files, and its arithmetic."""
    return sha256(json.dumps([files, engine], sort_keys=True).encode()).hexdigest()
