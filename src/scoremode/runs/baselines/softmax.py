"""Tells which flags give a model and its base one softmax, where their heads are of different widths.

A checkpoint's head may have rows that no token has (32,064 for 32,000 tokens, say), or its tokenizer
tokens that its base never knew. What both have is one tokenizer's vocabulary, so it must be one
tokenizer for both, and the softmax must run over that.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request

__all__ = ["common_softmax"]


def common_softmax(
    request: Request,
    planned: PlannedText,
    entries: int,
    base: Mapping[str, Any],
    base_entries: int,
) -> tuple[str, dict[str, str]]:
    """Advice in words, and the flags that follow it (none where another command comes first).

    - `entries`, `base_entries`: over what the softmax of the model and of its base runs.
    - `base`: the record's section of the base.
    """
    ours, least = planned.tokenizer.size, min(entries, base_entries)
    theirs = base.get("tokenizer")
    if theirs is None:  # a llama.cpp file, which knows no tokenizer
        if ours != base_entries:
            return "no flag gives both one vocabulary", {}
        return "--vocabulary tokenizer gives both one", {"--vocabulary": "tokenizer"}
    own = request.tokenizer or request.model
    is_stored = base["kind"] == "stored"
    other = request.tokenizer or (theirs["source"] if is_stored else str(request.reference))
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
