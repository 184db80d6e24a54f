"""A run's base, with which it compares its model: opened, checked against the plan, proven, described.

A base comes in three kinds. `stored`: states and head that `scoremode reference` kept. `model`: a
checkpoint that runs in the same process, pass by pass. `llama.cpp`: a file of log-probabilities. All
must be of the very same plan: the same token ids under the same protocol over the same vocabulary.
"""

from pathlib import Path

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.gguf.place import is_gguf
from scoremode.errors import ReferenceUnusable
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.reference.stored import StoredReference, is_run
from scoremode.runs.baselines.base import Baseline
from scoremode.runs.baselines.llama_cpp import LlamaCppBaseline
from scoremode.runs.baselines.model import ModelBaseline
from scoremode.runs.baselines.stored import StoredBaseline
from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request

__all__ = ["Baseline", "is_logits_file", "needs_capture", "open_baseline"]


def needs_capture(request: Request) -> bool:
    """Tells whether the base is a model that the request's engine can't run beside another."""
    assert request.reference is not None
    path = Path(request.reference)
    return not (request.options.runs_beside or is_run(path) or is_logits_file(path))


def open_baseline(
    request: Request, planned: PlannedText, checkpoint: Checkpoint, kept: Path | None = None
) -> Baseline:
    """The base that the request names: a reference's folder, a llama.cpp file, a model.

    - `planned`, `checkpoint`: of the measured model; `kept`: the folder of a reference that was made of
      the base.

    A model in the same process takes over the request's options, and the measured model's dtype. Raises
    ReferenceUnusable where it is of another plan, and all that opening a model raises.
    """
    assert request.reference is not None
    path = kept or Path(request.reference)
    if is_run(path):
        stored = StoredReference(path)
        return StoredBaseline(stored, planned, request.corpus, is_captured=kept is not None)
    if is_logits_file(path):
        if (rule := request.protocol.stop_when) is not None:
            raise ReferenceUnusable(
                f"{path}: is a llama.cpp file, which is read in the order of its chunks: --stop-when "
                f"{rule} draws windows, and takes a model or a kept reference as its base"
            )
        return LlamaCppBaseline(LlamaCppReference(path), planned.plan)
    return ModelBaseline(
        request.reference,
        planned,
        request.corpus,
        request.options.in_dtype_of(checkpoint),
        revision=request.reference_revision,
        tokenizer=request.tokenizer,
    )


def is_logits_file(path: Path) -> bool:
    """Tells whether a base is llama.cpp's predictions: any file that is no model."""
    return path.is_file() and not is_gguf(path)
