"""Measures how far a model's predictions are from a base's, from Scores with a comparison.

All in nats, p the base's distribution and q the model's. KLD is KL(p‖q), the mean extra nats that
the model needs where the base says what is likely; it falls on every token, while a perplexity
sees one of them and may by luck be better than the base's. Everything here is paired: both models
are measured on the same tokens, so what makes a text hard cancels in differences and ratios.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.means import Blocks, Mean

__all__ = ["PERCENTS", "distribution", "divergence_means", "log_ratio", "percentiles_of"]

Floats = NDArray[np.float64]

# Of the distributions, minimum and maximum apart.
PERCENTS = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
_TOP = 10


def log_ratio(scores: Scores, against: Comparison) -> Floats:
    """float64 [N]: nll − the base's nll. Its mean is the logarithm of the ratio of perplexities."""
    return against.base_logprob - scores.logprob


def divergence_means(scores: Scores, against: Comparison, blocks: Blocks) -> dict[str, Mean]:
    """The metrics of a comparison by name; docs/statistics.md says what each means."""
    d = _delta_p(scores, against)
    columns: dict[str, NDArray] = {
        "ppl_ratio": log_ratio(scores, against),
        **_divergences(against),
        "top1": scores.top1 == against.base_top1,
        "delta_p": d,
        "rms_delta_p": d**2,
    }
    if against.base_entropy is not None and against.model_entropy is not None:
        columns |= {"entropy_base": against.base_entropy, "entropy": against.model_entropy}
    ranks = range(1, _TOP + 1)
    if against.topk_sets is not None:
        columns |= {f"top{k}_sets": against.topk_sets >> (k - 1) & 1 for k in ranks}
    if against.topk_order is not None:
        columns |= {f"top{k}_order": against.topk_order >= k for k in ranks}
    then = {"ppl_ratio": np.exp, "rms_delta_p": np.sqrt}
    return {
        name: mean.through(then[name]) if name in then else mean
        for name, column in columns.items()
        if (mean := blocks.mean(column)) is not None
    }


def distribution(scores: Scores, against: Comparison) -> dict[str, dict[str, float]]:
    """Minimum, percentiles and maximum of every divergence and of Δp over all evaluations.

    An evaluation counts as one, whatever it weighs. Keys are percents as text, `minimum` and
    `maximum`.
    """
    columns = {**_divergences(against), "delta_p": _delta_p(scores, against)}
    return {name: _percentiles(column) for name, column in columns.items()}


def _divergences(against: Comparison) -> Mapping[str, Floats]:
    columns = {"kld": against.kld, "kld_reverse": against.kld_reverse}
    return columns if against.jsd is None else columns | {"jsd": against.jsd}


def _delta_p(scores: Scores, against: Comparison) -> Floats:
    """float64 [N]: q(target) − p(target)."""
    return np.exp(scores.logprob) - np.exp(against.base_logprob)


def _percentiles(values: Floats) -> dict[str, float]:
    ordered = np.sort(values)
    inside = percentiles_of(ordered, PERCENTS)
    named = {f"{percent:g}": value for percent, value in zip(PERCENTS, inside, strict=True)}
    return {"minimum": float(ordered[0]), **named, "maximum": float(ordered[-1])}


def percentiles_of(ordered: Floats, percents: Sequence[float]) -> list[float]:
    """Percentiles of rising values: linear interpolation at fraction · (n − 1), as llama.cpp does."""
    place = np.array(percents) / 100 * (len(ordered) - 1)
    below = place.astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    return (ordered[below] + (place - below) * (ordered[above] - ordered[below])).tolist()
