"""The difference of two scorings of the same windows, and a verdict on whether rounding explains it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import (
    LIMITS,
    Difference,
    Verdict,
    difference,
    judge,
    logits_of,
)
from scoremode.results.statistics.blocks import Places

# Columns that a model computes; the others are the plan's.
MEASURED = ("logprob", "top1", "top1_logprob", "base_logprob", "base_top1", "base_top1_logprob",
            "kld", "kld_reverse", "jsd", "base_entropy", "model_entropy", "topk_sets", "topk_order",
            "kld_llama_cpp")  # fmt: skip


def judged(
    scores: Scores,
    engine: Mapping[str, Any],
    others: Scores,
    other: Mapping[str, Any],
    context_length: int,
    weights: np.ndarray | None = None,
    places: Places | None = None,
) -> tuple[Difference, Verdict]:
    """The difference of two scorings, judged by what the coarsest dtype of both explains.

    - `engine`, `other`: sections of what computed `scores` and `others`; an empty one is exact.
    - `context_length`, `weights`, `places`: as `difference` takes them.
    """
    found = difference(scores, others, context_length, weights, places)
    order = list(LIMITS).index
    engines = [each for each in (engine, other) if each]
    ran, reference = ((each.get("activations") or {}).get("ran") for each in (engine, other))
    verdict = judge(
        found,
        compute=max((each["dtype"] for each in engines), key=order, default="float32"),
        logits=max(map(logits_of, engines), key=order, default="float32"),
        activations=ran,
        reference=reference,
    )
    return found, verdict


def differing_columns(scores: Scores, others: Scores) -> dict[str, int]:
    """Column that both have → how many of its values differ, of those where any does."""
    one, two = scores.columns(), others.columns()
    counts = {k: int((one[k] != two[k]).sum()) for k in MEASURED if k in one and k in two}
    return {name: count for name, count in counts.items() if count}
