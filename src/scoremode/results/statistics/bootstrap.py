"""Perplexities of Scores and of pages, and the bootstrap that their intervals are from, in float64.

Perplexity is the exponential of a mean; its interval comes from a bootstrap over blocks of the
text. Neighbouring tokens are correlated, and with overlapping windows one token is scored several
times, so neither tokens nor windows are independent draws: resampling them gives intervals about
half as wide as they should be. A block of the text at least one window long, taken with all
evaluations that fall into it, nearly is.

Whole conversations, pages and questions (`WHOLE`) are often few, of very unequal lengths, and some far
harder than the rest: percentiles of resamples then miss on the side of the long tail. Their intervals
are studentized as well, and each end is the further of the two (`Clusters`).

A page's log-likelihood, as lm-evaluation-harness has it, is of the tokens that the model reads; its
words and bytes are those of the page as it was before: so models with different tokenizers compare.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement
from scoremode.results.record.section import Metric
from scoremode.results.scores import Scores

MIN_BLOCKS = 8
# The length of blocks that are whole conversations, pages or questions.
WHOLE = 1
RESAMPLES = 10_000
# Of a studentized end, in Student's intervals.
FURTHEST = 2
# Below so many clusters → what their intervals cover.
_COVERED = ((15, 0.88), (30, 0.89), (60, 0.91), (100, 0.92))
_SEED = 20_481
Floats = NDArray[np.float64]


def perplexity(
    scores: Scores,
    block_length: int,
    weights: NDArray[np.float64] | None = None,
    numbered: NDArray[np.integer] | None = None,
) -> dict[str, Metric]:
    """The metrics `ppl` and `nll` (mean nats a token) of `scores`.

    - `block_length`: tokens of a bootstrap block, at least a window's length.
    - `weights`: float64 [N], what each evaluation counts; None for one each.
    - `numbered`: int [N], what blocks are runs of (`places.Places.numbered`); None for the places in
      the token stream.
    """
    nll = scores.nll
    weight = np.ones_like(nll) if weights is None else weights
    mean = float((nll * weight).sum() / weight.sum())
    block = (scores.index if numbered is None else numbered) // block_length
    sums = np.bincount(block, weights=nll * weight).astype(np.float64)
    totals = np.bincount(block, weights=weight).astype(np.float64)
    filled = totals > 0
    interval = block_bootstrap(
        sums[filled], totals[filled], whole=block_length == WHOLE, least=float(nll.min())
    )
    note = too_few(int(filled.sum()), block_length) if interval is None else None
    with np.errstate(over="ignore"):  # infinity is a value here, for the caller to refuse
        ppl = float(np.exp(mean))
        ppl_interval = tuple(float(np.exp(x)) for x in interval) if interval else None
    return {
        "ppl": Metric(ppl, ppl_interval, len(nll), note),  # pyright: ignore[reportArgumentType]
        "nll": Metric(mean, interval, len(nll), note),
    }


def block_bootstrap(
    sums: NDArray[np.float64],
    totals: NDArray[np.float64],
    *,
    whole: bool = False,
    least: float = -math.inf,
) -> tuple[float, float] | None:
    """95 % interval of Σ sums / Σ totals when whole blocks are drawn with replacement.

    `sums`, `totals`: float64 [blocks]; `whole`: these are `WHOLE`, and `least` is the smallest of the
    values that were summed, which no mean is below. Seeded; None below `MIN_BLOCKS` blocks.

    The plain percentile interval is too narrow for few blocks, by as much as a normal interval with
    the n-denominator is against Student's: the percentiles are taken further out by that factor
    (Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015:
    "expanded percentile interval").
    """
    blocks = len(sums)
    if blocks < MIN_BLOCKS:
        return None
    if whole:
        low, high = clusters(sums[None], totals[None]).ends[:, 0].tolist()
        return max(low, least), high
    ratios = [sums[drawn].sum(1) / totals[drawn].sum(1) for drawn in _draws(blocks)]
    low, high = percentile_interval(np.concatenate(ratios), blocks)
    return float(low), float(high)


def resampled(
    sums: NDArray[np.float64], totals: NDArray[np.float64], resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """float64 [resamples, M]: Σ sums / Σ totals of M quantities in the same resamples.

    `sums`, `totals`: float64 [M, blocks]. Blocks are drawn as in `block_bootstrap`; how often each
    was drawn times all quantities at once is one product of matrices, tens of times faster than
    gathering for one after the other. A resample whose total is 0 is not finite.
    """
    summed = _summed(np.concatenate([sums, totals]), resamples)
    with np.errstate(divide="ignore", invalid="ignore"):
        return summed[:, : len(sums)] / summed[:, len(sums) :]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Means of M quantities over few whole clusters, and how far resamples are off.

    - `value`, `error` float64 [M]: Σ sums / Σ totals, and its standard error.
    - `away` float64 [RESAMPLES, M]: a resample's mean less `value`; `t`: the same in standard errors
      of that resample, infinite where all clusters that it drew have one mean. Not finite where a
      resample's total is 0.
    - `blocks`: how many clusters.
    """

    value: NDArray[np.float64]
    error: NDArray[np.float64]
    away: NDArray[np.float64]
    t: NDArray[np.float64]
    blocks: int

    @property
    def ends(self) -> NDArray[np.float64]:
        """float64 [2, M]: the 95 % interval of each mean.

        An end is the further of the expanded percentile's and the studentized bootstrap's (Efron and
        Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12). Levels with a long tail need
        the second: with 8 conversations of log-normal levels the percentiles cover 84 %, both together
        89 %. It goes no further than twice Student's interval, since 8 clusters may draw a resample
        that hardly varies, whose t says nothing.
        """
        low, high = percentile_interval(self.away, self.blocks)
        most = FURTHEST * student(self.blocks - 1)
        t_low, t_high = np.percentile(np.clip(self.t, -most, most), [2.5, 97.5], axis=0)
        lower = self.value + np.minimum(low, -t_high * self.error)
        return np.stack([lower, self.value + np.maximum(high, -t_low * self.error)])


def clusters(sums: NDArray[np.float64], totals: NDArray[np.float64]) -> Clusters:
    """The `Clusters` of Σ sums / Σ totals, of M quantities; float64 [M, blocks] each.

    Draws are those of `resampled`. A standard error is a ratio's by linearization: with residuals
    e = y − R·x of n clusters it is √(n/(n−1) · Σe²) / Σx.
    """
    blocks = sums.shape[1]
    value = sums.sum(1) / totals.sum(1)
    residual = sums - value[:, None] * totals
    factor = blocks / (blocks - 1)
    error = np.sqrt(factor * (residual**2).sum(1)) / totals.sum(1)
    summed = _summed(np.concatenate([residual, totals, residual**2, residual * totals, totals**2]))
    own, total, squares, products, total_squares = np.split(summed, 5, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        away = own / total
        # Σ(e − away·x)² of the resample; below rounding it is that of equal clusters, 0.
        spread = squares - 2 * away * products + away**2 * total_squares
        spread[spread <= 1e-9 * (squares + away**2 * total_squares)] = 0
        t = away / (np.sqrt(factor * spread) / total)
    t[away == 0] = 0
    return Clusters(value, error, away, t, blocks)


def covered(count: int) -> float | None:
    """The share of 95 % intervals from `count` whole clusters that held the truth where it is hardest:
    levels that scatter log-normally by a factor of e (`benchmarks/coverage.py`).

    None from 100 on, where it is 94 %, and where there is no interval.
    """
    if count < MIN_BLOCKS:
        return None
    return next((share for below, share in _COVERED if count < below), None)


def _summed(columns: NDArray[np.float64], resamples: int = RESAMPLES) -> NDArray[np.float64]:
    """float64 [resamples, M]: sums of `columns` [M, blocks] over the blocks of each resample."""
    blocks = columns.shape[1]
    exact = _on_grid(columns, blocks).T
    return np.concatenate([each.astype(np.float64) @ exact for each in _counts(blocks, resamples)])


class Resamples:
    """The same resamples as those of `resampled`, of quantities that come one after the other, each of
    a few of the `blocks`."""

    def __init__(self, blocks: int, resamples: int):
        self._counts = np.concatenate([x.astype(np.uint16) for x in _counts(blocks, resamples)])

    def sums(self, columns: NDArray[np.float64], of: NDArray[np.integer]) -> NDArray[np.float64]:
        """float64 [resamples, M]: sums of `columns` [M, some], which are those of blocks `of` [some];
        all others are 0."""
        exact = _on_grid(columns, self._counts.shape[1]).T
        return self._counts[:, of].astype(np.float64) @ exact


def _counts(blocks: int, resamples: int) -> Iterator[NDArray[np.int64]]:
    """int64 [some, blocks]: how often some resamples have drawn each block, so many in all."""
    for drawn in _draws(blocks, resamples):
        rows = len(drawn)
        drawn += blocks * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * blocks).reshape(rows, blocks)


def _on_grid(values: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """`values` [M, blocks], each row rounded so that sums of any `draws` of it are exact.

    A matrix product adds in another order with every number of threads: exact sums don't mind, so
    a resumed run ends with the same bits. The rounding is at most 2^-52 of a resample's largest
    possible sum, far below what resampling can tell.
    """
    _, exponent = np.frexp(np.abs(values).max(1, keepdims=True) * draws)
    step = np.ldexp(1.0, np.maximum(exponent, -900) - 52)
    return np.round(values / step) * step


def percentile_interval(ratios: NDArray[np.float64], blocks: int) -> NDArray[np.float64]:
    """float64 [2, …]: the 95 % interval of each quantity of `ratios`, [RESAMPLES, …]."""
    tail = 100 * _expanded_tail(blocks)
    return np.percentile(ratios, [tail, 100 - tail], axis=0)


def too_few(blocks: int, block_length: int) -> str:
    """The reason why there is no interval; blocks of 1 are whole conversations, pages or questions."""
    if block_length == WHOLE:
        return (
            f"{blocks} block{'s' * (blocks != 1)} (whole conversations, pages or questions): an "
            f"interval needs at least {MIN_BLOCKS}"
        )
    return (
        f"{blocks} block{'s' * (blocks != 1)} of {block_length:,} tokens: an interval needs at least "
        f"{MIN_BLOCKS}"
    )


def verdict(interval: Sequence[float] | None, same: float, note: str | None) -> str:
    """Judges a quantity that is better the lower it is: `better`, `worse` than `same`, or neither."""
    if interval is None:
        return f"no interval: {note}"
    low, high = interval
    if high < same:
        return "better"
    return "worse" if low > same else "not distinguishable"


def _draws(blocks: int, resamples: int = RESAMPLES) -> Iterator[NDArray[np.int64]]:
    """int64 [some, blocks]: the blocks of some resamples, so many in all; always the same."""
    rng = np.random.default_rng(_SEED)
    step = max(1, 4_000_000 // blocks)
    for begin in range(0, resamples, step):
        yield rng.integers(blocks, size=(min(step, resamples - begin), blocks))


def _expanded_tail(n: int) -> float:
    """The share of resamples outside on either side, for 95 % from n draws; 0.025 for large n."""
    return NormalDist().cdf(-student(n - 1) * math.sqrt(n / (n - 1)))


def student(v: int) -> float:
    """The 97.5 % quantile of Student's distribution of `v` ≥ 7 degrees of freedom, good to 1e-3: by its
    expansion in 1/v (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(0.975)
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    return t + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)


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
