"""The sections of a run's record that follow from its Scores, and the time and versions in it.

The other sections are made by the parts of the program that they describe.
"""

import math
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np

from scoremode import __version__
from scoremode.errors import InvalidMeasurement
from scoremode.results.scores import Scores
from scoremode.results.statistics.bootstrap import Metric, perplexity
from scoremode.results.statistics.breakdown import Group, groups
from scoremode.results.statistics.divergence import distribution, divergence_means, log_ratio
from scoremode.results.statistics.llama_cpp import block_section
from scoremode.results.statistics.means import Blocks, Mean, estimates
from scoremode.results.statistics.places import Places

__all__ = ["now", "sections", "versions"]

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of scoremode, Python, the platform and the libraries that can move a number."""
    return {
        "scoremode": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def sections(
    scores: Scores,
    context_length: int,
    extras: Mapping[str, np.ndarray],
    *,
    block_length: int | None = None,
) -> dict[str, Any]:
    """The record's `metrics` and `intervals`, against a base its `distribution`, `breakdown` and
    `llama_cpp` as well.

    - `context_length`: tokens of a window.
    - `extras`: [N] each, those there are of `weight` (float64, what each evaluation counts),
      `token_bytes` (uint16) and `token_class` (uint8) of the targets, `conversation` (int32), which is
      a bootstrap block then (`places`); see `store.read_columns`.
    - `block_length`: tokens of a bootstrap block, where they are not to be chosen from the scores;
      then there is no section `intervals`.

    Raises InvalidMeasurement where a number is not finite.
    """
    weights, token_bytes = extras.get("weight"), extras.get("token_bytes")
    chosen, places = None, Places.of(scores, extras)
    if block_length is None:
        chosen = places.chosen(_resampled_columns(scores), context_length, weights)
        block_length = chosen.tokens
    against, blocks = scores.against, places.blocks(block_length, weights)
    metrics = perplexity(scores, block_length, weights, places.numbered)
    parts: list[Group] = []
    whole = _bits_per_byte("bits_per_byte", scores, token_bytes, blocks)
    if against is not None:
        base = replace(scores, logprob=against.base_logprob)
        of_base = perplexity(base, block_length, weights, places.numbered)
        metrics |= {f"{name}_base": metric for name, metric in of_base.items()}
        whole |= _bits_per_byte("bits_per_byte_base", base, token_bytes, blocks)
        whole |= divergence_means(scores, against, blocks)
        parts = groups(scores, against, blocks, extras.get("token_class"), extras.get("label"))
    # All at once, since those with the same blocks share one resampling; None stands for the whole.
    means: dict[tuple[int | None, str], Mean] = {(None, name): m for name, m in whole.items()}
    means |= {(i, name): m for i, part in enumerate(parts) for name, m in part.means.items()}
    found = estimates(means, block_length)
    metrics |= {name: found[None, name] for name in whole}
    result: dict[str, Any] = {"metrics": {name: _finite(m, name) for name, m in metrics.items()}}
    if chosen is not None:
        result["intervals"] = {"blocks": blocks.filled} | chosen.to_json()
    if against is not None:
        breakdown: dict[str, list[dict[str, Any]]] = {}
        for i, part in enumerate(parts):
            of_part = {k: _finite(found[i, k], f"{k} of {part.of} {part.name}") for k in part.means}
            breakdown.setdefault(part.of, []).append(part.to_json() | of_part)
        result |= {"distribution": distribution(scores, against), "breakdown": breakdown}
    return result | block_section(scores, extras)


def _resampled_columns(scores: Scores) -> dict[str, np.ndarray]:
    """The columns whose dependence decides how long blocks are: float64 [N] by their metrics' names."""
    against = scores.against
    if against is None:
        return {"nll": scores.nll}
    return {"nll": scores.nll, "ppl_ratio": log_ratio(scores, against), "kld": against.kld}


def _bits_per_byte(
    name: str, scores: Scores, token_bytes: np.ndarray | None, blocks: Blocks
) -> dict[str, Mean]:
    """Σ nll / (ln 2 · Σ bytes); nothing where no target has a byte."""
    if token_bytes is None:
        return {}
    mean = blocks.mean(scores.nll / math.log(2), per=token_bytes)
    return {} if mean is None else {name: mean}


def _finite(metric: Metric, name: str) -> dict[str, Any]:
    for number in (metric.value, *(metric.ci95 or ())):
        if not math.isfinite(number):
            raise InvalidMeasurement(f"{name} is {number}: the mean is too large for it")
    return metric.to_json()
