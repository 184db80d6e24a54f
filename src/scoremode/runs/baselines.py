"""A run's base, with which it compares its model: opened, checked against the plan, proven, described.

A base comes in three kinds. `stored`: states and head that `scoremode reference` kept. `model`: a
checkpoint that runs in the same process, pass by pass. `llama.cpp`: a file of log-probabilities. All
must be of the very same plan: the same token ids under the same protocol over the same vocabulary.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.base import Options, Progress, Schedule
from scoremode.engines.replay.options import ReplayOptions
from scoremode.errors import ReferenceUnusable
from scoremode.head.project import Head
from scoremode.lib.json import json_digest
from scoremode.lib.tasks import Task
from scoremode.llama_cpp.file import Contents
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.reference.address import complete
from scoremode.reference.base import Reference, Span
from scoremode.reference.replay import Replay, compare_base, replay
from scoremode.reference.stored import OrderedReference, StoredReference, is_run
from scoremode.results.record.definition import Done
from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import logits_of
from scoremode.runs.planning import plan_of_base
from scoremode.runs.request import Request
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan


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
        """Returns what two runs must share to be one, and what is known before anything runs."""
        ...

    def beside(self, options: Options) -> Options:
        """Gives `options` for an engine that is compared with it, in one dtype where none is named, and
        that may share a GPU with it; they bound its memory for both.

        To be called before that engine is made: what it has to bring to the device begins to go there.
        Raises EngineError, UsageError.
        """
        ...

    def prove(self) -> None:
        """Makes sure, before anything else runs, that it can be compared with. Raises
        ReferenceUnusable."""
        ...

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        """The reference that an engine is given."""
        ...

    def section(self) -> dict[str, Any]:
        """The record's section `reference`, as far as it is known before a pass is scored."""
        ...

    def settle(self) -> dict[str, str] | None:
        """Returns when all that it reads is known to be what it was: its files, name → sha256, or None
        where `identity` holds their hashes. Raises ReferenceUnusable, CheckpointError."""
        ...

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        """Compares the base's part of a pass, from row `begin` of the plan, with what is known of it.

        `engine`: what scored it. Raises ReferenceUnusable.
        """
        ...

    def finish(self) -> dict[str, Any]:
        """Returns what the section gains at the end."""
        ...

    def close(self) -> None:
        """Ends what it has started to compute with; afterwards nothing can be compared with it."""
        ...


# Two runs may differ in these and still have the same base: machine, and grouping of windows. Scores
# move by rounding with both.
_GROUPING = ("batch_windows", "device")


def base_sha256(files: Mapping[str, str], engine: Mapping[str, Any]) -> str:
    """The sha256 of what two runs must share to be compared with the same base: its files, and its
    arithmetic."""
    arithmetic = {name: value for name, value in engine.items() if name not in _GROUPING}
    arithmetic["device"] = {k: engine["device"][k] for k in ("type", "name")}
    return json_digest([files, arithmetic])


def base_of_record(record: Done) -> str:
    """The sha256 of a kept base (`base_sha256`), by its own record."""
    return base_sha256(record.checkpoint.files or {}, record.document["identity"]["engine"])


class ModelBaseline:
    """A model in the same process, pass by pass, by an `engine` of the same options.

    - `kept`: gets the final states [N, D] of each micro-batch of a plan of one pass, by their rows;
      None where nobody wants them once more.
    """

    runs = 1

    def __init__(
        self,
        model: ModelFiles,
        planned: PlannedText,
        corpus: Corpus,
        options: Options,
        tokenizer: str | ModelFiles | None,
    ):
        self.checkpoint = open_checkpoint(model, code=options.trust_remote_code)
        self._planned = own = plan_of_base(planned, corpus, model, tokenizer)
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
        from scoremode.engines.torch.engine import ModelReference

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


class StoredBaseline:
    """A reference that `scoremode reference` kept; `is_captured`: made for this run, which names the
    model instead."""

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
        stored.check_plan(planned, corpus)
        self._rows = planned.plan.scored
        complete(stored, self._rows)
        ordered = stored.by_rows_of(planned.plan)
        self._ordered = ordered if isinstance(ordered, OrderedReference) else None
        self._is_captured = is_captured
        # vLLM's workers have theirs to themselves: there the replay runs on the CPU.
        self._device = torch.device("cpu")
        self._at_load: Replay | None = None
        self._all: Replay | None = None
        self._head: Task[Head] | None = None

    @cached_property
    def _files(self) -> Task[None]:
        return Task(partial(self.stored.check_files, self._rows))

    def identity(self) -> dict[str, Any]:
        return {"kind": "stored", "sha256": self.stored.sha256}

    def beside(self, options: Options) -> Options:
        """The base has computed already: the model computes in its dtype."""
        return options.in_dtype(self.stored.record.engine.dtype).sharing(self._hold)

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
        record, document = self.stored.record, self.stored.record.document
        names = ("source", "path", "fingerprint", "files", "bits_per_weight", "bytes", "gib")
        return {
            "kind": "model" if self._is_captured else "stored",
            "source": record.checkpoint.source if self._is_captured else self.stored.source,
            **({"label": record.label} if record.label else {}),
            "sha256": base_of_record(record),
            "states_sha256": self.stored.sha256,
            "checkpoint": {k: v for k, v in document["checkpoint"].items() if k in names},
            "tokenizer": document["tokenizer"],
            "engine": document["engine"],
            "metrics": document["metrics"],
            "head": document["kept"]["head"],
            "replay_at_load": None if self._at_load is None else self._at_load.to_json(),
        }

    def settle(self) -> None:
        return self._files.result()

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        assert scores.base is not None
        logprob, rows = scores.base.base_logprob, None
        if self._ordered is not None:
            rows = self._ordered.rows(begin, begin + len(scores))
        found = compare_base(self.stored, begin, logprob, logits_of(engine), rows)
        self._all = found if self._all is None else self._all.joined(found)

    def finish(self) -> dict[str, Any]:
        # Of a resumed run only the passes since: those before were checked then.
        return {"replay": None if self._all is None else self._all.to_json()}

    def close(self) -> None:
        """Nothing computes; what reads ahead goes with the reference."""


class LlamaCppBaseline:
    """The file of log-probabilities of `reference`, as llama-perplexity writes it.

    It must hold every target of `plan`. Raises ReferenceUnusable.
    """

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
            **file.facts(),
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
        return self._file.facts(self._contents.result())

    def close(self) -> None:
        """Nothing computes."""


def open_baseline(
    request: Request, planned: PlannedText, checkpoint: Checkpoint, kept: Path | None = None
) -> Baseline:
    """The base of a request whose names are resolved: a reference's folder, a llama.cpp file, a model.

    - `planned`, `checkpoint`: of the measured model; `kept`: the folder of a reference that was made of
      the base.

    A model in the same process takes over the request's options, and the measured model's dtype. Raises
    ReferenceUnusable where it is of another plan, and all that opening a model raises.
    """
    assert request.reference is not None
    path = kept or Path(str(request.reference))
    if is_run(path):
        # Of two kept runs each is compared as it ran.
        stored = StoredReference(path, as_ran=isinstance(request.options, ReplayOptions))
        return StoredBaseline(stored, planned, request.corpus, is_captured=kept is not None)
    if is_logits_file(path):
        if (rule := request.protocol.stop_when) is not None:
            raise ReferenceUnusable(
                f"{path}: is a llama.cpp file, which is read in the order of its chunks: --stop-when "
                f"{rule} draws windows, and takes a model or a kept reference as its base"
            )
        return LlamaCppBaseline(LlamaCppReference(path), planned.plan)
    assert isinstance(request.reference, ModelFiles)
    return ModelBaseline(
        request.reference,
        planned,
        request.corpus,
        request.options.in_dtype_of(checkpoint),
        tokenizer=request.tokenizer,
    )


def is_logits_file(path: Path) -> bool:
    """Tells whether a base is llama.cpp's predictions: any file that is no model."""
    return path.is_file() and not is_gguf(path)
