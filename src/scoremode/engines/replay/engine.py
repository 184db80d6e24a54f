"""Kept predictions as an engine: their logits, scored in tiles as a model's are, and no layer runs.

Scores of states that the torch engine kept have its bits on the same device with the same kernels,
since the states go through the same head in the same micro-batches. An engine that rounded its logits
(vLLM's `head_dtype=model`) has them rounded again (`RoundedHead`), by another kernel: nearly all fall
to the same value, and `check` in the record says how far the targets' log-probabilities are apart.
"""

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scoremode.checkpoint.virtual import RecordedCheckpoint
from scoremode.engines.base import Extras, Progress, Schedule, Work
from scoremode.engines.replay.options import Predictions
from scoremode.engines.torch.device import DeviceClock, choose_device, make_current
from scoremode.engines.torch.memory.budget import out_of_memory
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.passes.microbatch import PendingScores, score_span
from scoremode.errors import EngineError, ReferenceUnusable
from scoremode.lib import fallback
from scoremode.reference.base import Reference
from scoremode.reference.replay import Replay, compare_base
from scoremode.reference.stored import OrderedReference, StoredReference
from scoremode.reference.writer import HeadTensors
from scoremode.results.scores import Scores, expected
from scoremode.results.statistics.agreement import logits_of
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan

# Fields of a kept run's engine that say how its predictions came about.
_COMPUTED = ("dtype", "arithmetic", "activations", "products", "attention", "kv_cache_dtype",
             "kv_cache", "text_alone", "model_class", "unused_tensors")  # fmt: skip


class ReplayEngine:
    """`predictions` of the windows of `plan`, ready to be scored on the device that `options` name."""

    def __init__(self, predictions: Predictions, plan: Plan, options: TorchOptions):
        self._predictions = predictions
        self._reference = predictions.reference(plan)
        self._device = choose_device(options.device, options.max_memory, options.memory_share)
        self._clock = DeviceClock(self._device.torch)
        self._check: Replay | None = None
        make_current(self._device.torch)

    @property
    def vocabulary(self) -> int:
        return self._predictions.vocabulary

    def schedule(self, plan: Plan) -> Schedule:
        return self._predictions.schedule()

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        """The Scores of each pass. Raises OutOfMemory and ReferenceUnusable, after the Scores of all
        passes before."""
        for work in Work.passes(plan, schedule, first_pass, progress, extras):
            try:
                with torch.no_grad():
                    scores = self._scored(work)
            except torch.cuda.OutOfMemoryError as error:
                raise out_of_memory(error) from None
            begin, _ = work.spans[0]
            found = self._predictions.compare(self._reference, scores, begin)
            if found is not None:
                self._check = found if self._check is None else self._check.joined(found)
            yield scores

    def head_tensors(self) -> HeadTensors:
        raise EngineError("kept predictions are kept already")

    def identity(self) -> dict[str, Any]:
        return {
            "engine": "replay",
            "torch": torch.__version__,
            **self._predictions.engine(),
            "vocabulary": self.vocabulary,
            "device": self._device.to_json(),
            "replayed": self._predictions.identity(),
        }

    def describe(self) -> dict[str, Any]:
        check = None if self._check is None else self._check.to_json()
        said = self.identity()
        return {
            **said,
            "replayed": {**said["replayed"], **self._predictions.describe(), "check": check},
            "kernels": fallback.ran(),
            # No token went through a model.
            "tokens": 0,
            "seconds": self._clock.seconds(),
            "peak_bytes": self._device.peak_bytes(),
        }

    def close(self) -> None:
        """Nothing computes; what reads ahead goes with the predictions."""

    def _scored(self, work: Work) -> Scores:
        columns = [expected(work.plan, batch) for batch in work.batches]
        spans, device = work.spans, self._device.torch
        for reference in (work.extras.reference, self._reference):
            if reference is not None:
                reference.expect(spans, device)
        results = []
        for batch, span, column in zip(work.batches, spans, columns, strict=True):
            target = torch.from_numpy(column["target"].astype(np.int64)).to(device)
            logits = partial(self._reference.logits, [span], device)
            results.append(score_span(logits, self.vocabulary, work, span, target, self._clock))
            work.progress(work.part(batch).tokens)
        return PendingScores(columns, results, device).scores()


class KeptRun:
    """The Predictions of a finished run that `scoremode reference` kept in the folder `path`. Raises
    ReferenceUnusable, RunFolderError."""

    def __init__(self, path: Path):
        self._stored = StoredReference(path, as_ran=True)
        if not self._stored.record.schedule:
            raise ReferenceUnusable(f"{path}: its record has no schedule")

    @property
    def checkpoint(self) -> RecordedCheckpoint:
        section = self._stored.record.document["checkpoint"]
        return RecordedCheckpoint(
            self._stored.path,
            section["source"],
            {},
            {},
            section=section,
            read_through=lambda: self._files,
        )

    @property
    def vocabulary(self) -> int:
        return self._stored.vocabulary

    @property
    def tokenizer(self) -> str | None:
        return self._stored.record.tokenizer.source

    @property
    def dtype(self) -> str | None:
        return self._stored.record.engine.dtype

    @cached_property
    def _files(self) -> dict[str, str]:
        """The hashes of the checkpoint's files, when all that was kept of its run is read through."""
        self._stored.check_files()
        return self._stored.record.document["checkpoint"]["files"]

    def check_plan(self, planned: PlannedText, corpus: Corpus) -> None:
        self._stored.check_plan(planned, corpus)

    def schedule(self) -> Schedule:
        """The run's own: the same bits come of the same rows in one product."""
        return Schedule(**self._stored.record.document["schedule"])

    def reference(self, plan: Plan) -> Reference:
        return self._stored.by_rows_of(plan)

    def compare(self, reference: Reference, scores: Scores, begin: int) -> Replay:
        drawn = reference if isinstance(reference, OrderedReference) else None
        rows = None if drawn is None else drawn.rows(begin, begin + len(scores))
        return compare_base(self._stored, begin, scores.logprob, "float32", rows)

    def engine(self) -> dict[str, Any]:
        said = self._stored.record.document["engine"]
        return {name: said[name] for name in _COMPUTED if name in said}

    def identity(self) -> dict[str, Any]:
        said = self._stored.record.document["engine"]
        return {"kind": "stored", "sha256": self._stored.sha256, "logits": logits_of(said)}

    def describe(self) -> dict[str, Any]:
        record = self._stored.record
        return {
            "source": str(self._stored.path),
            "path": str(self._stored.path.resolve()),
            "run_sha256": record.sha256,
            "engine": record.document["engine"],
        }
