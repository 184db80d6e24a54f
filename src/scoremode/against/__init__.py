"""What a run compares its model with: opened, checked against the plan, proven, described.

A base comes in three kinds. `stored`: states and head that `scoremode reference` kept. `model`: a
checkpoint that runs in the same process, pass by pass. `llama.cpp`: a file of log-probabilities. All
must be of the very same plan: the same token ids under the same protocol over the same vocabulary.
"""

from pathlib import Path
from typing import Any

from scoremode.against.base import Baseline
from scoremode.against.llama_cpp import LlamaCppBaseline
from scoremode.against.model import ModelBaseline
from scoremode.against.stored import StoredBaseline
from scoremode.engines.torch.engine import TorchOptions
from scoremode.errors import ReferenceUnusable
from scoremode.planning import PlannedText
from scoremode.reference.llama_cpp_logits import LlamaCppReference
from scoremode.reference.stored import StoredReference, is_run
from scoremode.text.corpus import Corpus

__all__ = ["Baseline", "open_baseline"]


def open_baseline(
    reference: str,
    planned: PlannedText,
    *,
    corpus: Corpus,
    options: Any,
    revision: str | None = None,
) -> Baseline:
    """The base that `reference` names: a reference's folder, a llama.cpp file, a model's folder, or its
    hub id.

    - `planned`: of the measured model; `options`: of the engine that measures it, which a base in the
      same process takes over.

    Raises ReferenceUnusable where it is of another plan, and all that opening a model raises.
    """
    path = Path(reference)
    if is_run(path):
        device = options.device if isinstance(options, TorchOptions) else None
        return StoredBaseline(StoredReference(path), planned, corpus, device)
    if path.is_file():
        return LlamaCppBaseline(LlamaCppReference(path), planned.plan)
    if not isinstance(options, TorchOptions):
        raise ReferenceUnusable(
            f"{reference}: is a model, and vLLM runs one at a time: capture it first with "
            "scoremode reference"
        )
    return ModelBaseline(reference, planned, corpus, options, revision)
