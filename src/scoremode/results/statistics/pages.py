"""Perplexities of whole pages, a word and a byte, as lm-evaluation-harness has them.

A page's log-likelihood is of the tokens that the model reads, its words and bytes are those of the page
as it was before: so models with different tokenizers compare.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, Metric, block_bootstrap

__all__ = ["pages_section"]

Floats = NDArray[np.float64]


def pages_section(
    words: NDArray[np.int64],
    byte_counts: NDArray[np.int64],
    logprob: Floats,
    base_logprob: Floats | None = None,
) -> dict[str, Any]:
    """The record's section `pages`: how many pages, words and bytes there are, and the `metrics`
    `word_perplexity` = exp(-Σ logprob / Σ words), `byte_perplexity` likewise, and `bits_per_byte` =
    -Σ logprob / (Σ bytes · ln 2); with a base its own, too, as `…_base`.

    - `words`, `byte_counts` int64 [P]: those of each page, `logprob` float64 [P]: its log-likelihood in
      nats; `base_logprob`: the base's.

    Intervals are bootstraps over whole pages. Raises InvalidMeasurement where a number is not finite.
    """
    metrics: dict[str, Any] = {}
    for suffix, of in (("", logprob), ("_base", base_logprob)):
        if of is None:
            continue
        made = {
            "word_perplexity": _metric(of, words, math.exp),
            "byte_perplexity": _metric(of, byte_counts, math.exp),
            "bits_per_byte": _metric(of, byte_counts, lambda nats: nats / math.log(2)),
        }
        metrics |= {name + suffix: metric.to_json() for name, metric in made.items()}
    return {
        "pages": len(words),
        "words": int(words.sum()),
        "bytes": int(byte_counts.sum()),
        "metrics": metrics,
    }


def _metric(logprob: Floats, counts: NDArray[np.int64], shown: Callable[[float], float]) -> Metric:
    totals = counts.astype(np.float64)
    interval = block_bootstrap(-logprob, totals, whole=True, least=0.0)
    ends = [-float(logprob.sum()) / float(totals.sum()), *(interval or ())]
    try:
        value, *ci95 = map(shown, ends)
    except OverflowError:
        raise InvalidMeasurement(
            f"{ends[0]:.4g} nats a word: its exponential is no number"
        ) from None
    note = None
    if interval is None:
        pages = f"{len(counts)} page{'s' * (len(counts) != 1)}"
        note = f"{pages}: an interval needs at least {MIN_BLOCKS}"
    return Metric(value, (ci95[0], ci95[1]) if ci95 else None, int(counts.sum()), note)
