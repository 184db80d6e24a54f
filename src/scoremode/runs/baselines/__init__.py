"""A run's base, with which it compares its model: opened, checked against the plan, proven, described.

A base comes in three kinds. `stored`: states and head that `scoremode reference` kept. `model`: a
checkpoint that runs in the same process, pass by pass. `llama.cpp`: a file of log-probabilities. All
must be of the very same plan: the same token ids under the same protocol over the same vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.errors import ReferenceUnusable
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.reference.stored import StoredReference, is_run
from scoremode.runs.baselines.base import Baseline, LlamaCppBaseline, ModelBaseline, StoredBaseline
from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request


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
    path = kept or Path(str(request.reference))
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
    files = request.base_files()
    assert files is not None
    return ModelBaseline(
        files,
        planned,
        request.corpus,
        request.options.in_dtype_of(checkpoint),
        tokenizer=request.tokenizer,
    )


def is_logits_file(path: Path) -> bool:
    """Tells whether a base is llama.cpp's predictions: any file that is no model."""
    return path.is_file() and not is_gguf(path)


def common_softmax(
    request: Request,
    planned: PlannedText,
    entries: int,
    base: Mapping[str, Any],
    base_entries: int,
) -> tuple[str, dict[str, str]]:
    """Advice on one softmax for a model and its base, whose heads have different widths: words, and the
    flags that follow it (none where another command comes first).

    A checkpoint's head may have rows that no token has (32,064 for 32,000 tokens, say), or its
    tokenizer tokens that its base never knew. Both have one tokenizer's vocabulary, so it must be one
    tokenizer for both, and the softmax must run over that.

    - `entries`, `base_entries`: over what the softmax of the model and of its base runs.
    - `base`: the record's section of the base.
    """
    ours, least = planned.tokenizer.size, min(entries, base_entries)
    theirs = base.get("tokenizer")
    if theirs is None:  # a llama.cpp file, which knows no tokenizer
        if ours != base_entries:
            return "no flag gives both one vocabulary", {}
        return "--vocabulary tokenizer gives both one", {"--vocabulary": "tokenizer"}
    own = str(request.tokenizer or request.model)
    is_stored = base["kind"] == "stored"
    other = theirs["source"] if is_stored else request.reference
    other = str(request.tokenizer or other)
    fitting = [
        (size, name) for size, name in ((ours, own), (theirs["size"], other)) if size <= least
    ]
    if not fitting:
        return f"neither tokenizer fits {least} entries, so no flag gives both one vocabulary", {}
    _, name = min(fitting)
    flags = {"--vocabulary": "tokenizer"}
    if ours != theirs["size"]:
        flags["--tokenizer"] = name
    words = " ".join(f"{flag} {value}" for flag, value in flags.items())
    if not is_stored:
        return f"{words} gives both one", flags
    if planned.plan.protocol.vocabulary == "tokenizer":
        # What the base ran over is its own tokenizer's, which then is what this model needs.
        return f"--tokenizer {other} gives both one", {"--tokenizer": other}
    return f"keep the reference anew with {words}, and give that here as well", {}
