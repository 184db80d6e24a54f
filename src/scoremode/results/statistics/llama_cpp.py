"""llama-perplexity's `--kl-divergence` statistics, from per-token values, as it prints them.

People compare these blocks and parse them, so the numbers are llama.cpp's own, its float32 roundings
included (llama.cpp 0c1e57098, tools/perplexity/perplexity.cpp):

- nll, base nll and Δp are float32, and so are their squares and their product; sums are float64. For
  two nearly equal models the ± of the ratio is a small difference of such sums, which may be nothing
  but their roundings; a negative variance is printed as `nan` (glibc on x86 prints `-nan`).
- The mean KLD is of float64 values, the median and percentiles of the same rounded to float32. A
  percentile's place `fraction · (n - 1)` is float32 too: beyond 2¹⁷ tokens it is off by up to 1/128 of
  a step between neighbours and more, beyond 2²⁴ it skips some.
- Every ± is one standard error of independent tokens, which they are not: it is too small.
  `results.statistics` has the interval to believe.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Scores

# Below it llama-perplexity prints its table of chunks and no statistics.
MIN_TOKENS = 100

_KLD_PERCENTILES = ("99.9", "99.0", "95.0", "90.0", "median", "10.0", "5.0", "1.0", "0.1")
_DELTA_PERCENTILES = (*_KLD_PERCENTILES[:4], "75.0", "median", "25.0", *_KLD_PERCENTILES[5:])

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """`value` ± `error`, one standard error if all tokens were independent."""

    value: float
    error: float


@dataclass(frozen=True)
class LlamaCppBlock:
    """The block's numbers in its order; shares are of 1, where it prints percent.

    - `n`: tokens. `ppl`, `ppl_base`: of the model and of the base.
    - `correlation`: of both models' ln PPL.
    - `log_ppl_ratio`, `ppl_ratio`, `ppl_difference`: model against base.
    - `kld`: mean nats a token, with `kld_percentiles`.
    - `delta_p`: mean of p(token) of the model less that of the base, with `delta_p_percentiles`;
      `delta_p_rms`: its root mean square.
    - `same_top`: the share of tokens where both models' likeliest id is the same.

    Percentiles go by `"maximum"`, `"99.9"` … `"median"` … `"0.1"`, `"minimum"`.
    """

    n: int
    ppl: Estimate
    ppl_base: Estimate
    correlation: float
    log_ppl_ratio: Estimate
    ppl_ratio: Estimate
    ppl_difference: Estimate
    kld: Estimate
    kld_percentiles: dict[str, float]
    delta_p: Estimate
    delta_p_percentiles: dict[str, float]
    delta_p_rms: Estimate
    same_top: Estimate

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for what isn't a number."""
        return _finite(asdict(self))

    def text(self) -> str:
        """The block as llama-perplexity prints it, without the last line's end."""
        return "\n".join(
            [
                "====== Perplexity statistics ======",
                f"Mean PPL(Q)                   : {_wide(self.ppl)}",
                f"Mean PPL(base)                : {_wide(self.ppl_base)}",
                f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * self.correlation:6.2f}%",
                f"Mean ln(PPL(Q)/PPL(base))     : {_wide(self.log_ppl_ratio)}",
                f"Mean PPL(Q)/PPL(base)         : {_wide(self.ppl_ratio)}",
                f"Mean PPL(Q)-PPL(base)         : {_wide(self.ppl_difference)}",
                "",
                "====== KL divergence statistics ======",
                f"Mean    KLD: {_wide(self.kld)}",
                *(f"{_label(k)} KLD: {v:10.6f}" for k, v in self.kld_percentiles.items()),
                "",
                "====== Token probability statistics ======",
                f"Mean    Δp: {_percent(self.delta_p)}",
                *(f"{_label(k)} Δp: {100 * v:6.3f}%" for k, v in self.delta_p_percentiles.items()),
                f"RMS Δp    : {_percent(self.delta_p_rms)}",
                f"Same top p: {_percent(self.same_top)}",
            ]
        )


def block_section(scores: Scores, columns: Mapping[str, NDArray]) -> dict[str, Any]:
    """The record's `llama_cpp`, of Scores with a comparison, else nothing; without a block,
    `llama_cpp_note` says why.

    `columns`: those beside the Scores, of which `weight` is one where evaluations are weighted.
    """
    if scores.against is None:
        return {}
    if "weight" in columns:
        return {"llama_cpp_note": "llama.cpp knows no weights, which this protocol has"}
    block, n = block_of(scores), len(scores)
    if block is None:
        note = f"llama.cpp makes its block of {MIN_TOKENS} tokens or more, and these are {n}"
        return {"llama_cpp": None, "llama_cpp_note": note}
    return {"llama_cpp": block.to_json()}


def block_of(scores: Scores) -> LlamaCppBlock | None:
    """The block of Scores with a comparison, with llama.cpp's own KLD where they have it."""
    against = scores.against
    assert against is not None, "no base"
    kld = against.kld if against.kld_llama_cpp is None else against.kld_llama_cpp
    same_top = scores.top1 == against.base_top1
    return llama_cpp_block(scores.nll, -against.base_logprob, kld, same_top)


def llama_cpp_block(
    nll: Floats, base_nll: Floats, kld: Floats, same_top: NDArray[np.bool_]
) -> LlamaCppBlock | None:
    """The block of N scored tokens, None below `MIN_TOKENS`.

    - `nll`, `base_nll` float64 [N]: nats, of the model and of the base.
    - `kld` float64 [N]: nats. llama.cpp's own is `rows.kld_llama_cpp`.
    - `same_top` bool [N]: whether both have the same likeliest id, the smallest such id on ties.

    Δp follows from the first two. All values must be finite, as `results.scores.check` makes sure.
    """
    n = len(nll)
    assert len(base_nll) == len(kld) == len(same_top) == n, "columns of one length"
    if n < MIN_TOKENS:
        return None
    a, b = nll.astype(np.float32), base_nll.astype(np.float32)
    delta = _probability(a) - _probability(b)
    squares = delta * delta

    log_a, log_b = _estimate(a, a * a), _estimate(b, b * b)
    covariance = (_mean(a * b) - _mean(a) * _mean(b)) / (n - 1)
    scale = log_a.error * log_b.error
    ratio = Estimate(
        log_a.value - log_b.value, _root(log_a.error**2 + log_b.error**2 - 2 * covariance)
    )
    ppl, base = _exponential(log_a), _exponential(log_b)
    spread = ppl.error**2 + base.error**2 - 2 * ppl.value * base.value * covariance
    mean_square = _estimate(squares, squares.astype(np.float64) ** 2)
    rms = math.sqrt(mean_square.value)
    agreement = float(same_top.mean())
    return LlamaCppBlock(
        n=n,
        ppl=ppl,
        ppl_base=base,
        correlation=covariance / scale if scale else math.nan,
        log_ppl_ratio=ratio,
        ppl_ratio=_exponential(ratio),
        ppl_difference=Estimate(ppl.value - base.value, _root(spread)),
        kld=_estimate(kld, kld * kld),
        kld_percentiles=_percentiles(kld.astype(np.float32), _KLD_PERCENTILES),
        delta_p=_estimate(delta, squares),
        delta_p_percentiles=_percentiles(delta, _DELTA_PERCENTILES),
        delta_p_rms=Estimate(rms, 0.5 / rms * mean_square.error if rms else math.nan),
        same_top=Estimate(agreement, math.sqrt(agreement * (1 - agreement) / (n - 1))),
    )


def _mean(values: NDArray) -> float:
    return float(values.sum(dtype=np.float64)) / len(values)


def _estimate(values: NDArray, squares: NDArray) -> Estimate:
    mean = _mean(values)
    variance = _mean(squares) - mean * mean
    return Estimate(mean, math.sqrt(variance / (len(values) - 1)) if variance > 0 else 0.0)


def _exponential(log: Estimate) -> Estimate:
    value = math.exp(log.value) if log.value < 709 else math.inf
    return Estimate(value, value * log.error)


def _root(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _probability(nll: NDArray[np.float32]) -> NDArray[np.float32]:
    # As C libraries round expf, all but always; numpy's own in float32 is a few last places off.
    return np.exp(-nll.astype(np.float64)).astype(np.float32)


def _percentiles(values: NDArray[np.float32], labels: tuple[str, ...]) -> dict[str, float]:
    ordered = np.sort(values)
    half = len(ordered) // 2
    median = ordered[half]
    if len(ordered) % 2 == 0:
        median = np.float32(0.5) * (median + ordered[half - 1])
    found = {"maximum": float(ordered[-1])}
    for label in labels:
        is_median = label == "median"
        found[label] = float(median) if is_median else _percentile(ordered, float(label) / 100)
    return found | {"minimum": float(ordered[0])}


def _percentile(ordered: NDArray[np.float32], fraction: float) -> float:
    last = len(ordered) - 1
    place = np.float32(fraction) * np.float32(last)
    below = int(place)
    share = place - np.float32(below)
    above = min(below + 1, last)
    return float((np.float32(1) - share) * ordered[below] + share * ordered[above])


def _label(key: str) -> str:
    """A percentile's name, padded as it is printed: `99.9%  `, ` 5.0%  `, `Median `."""
    return f"{f'{key:>4}%' if key[0].isdigit() else key.capitalize():7}"


def _wide(estimate: Estimate) -> str:
    return f"{estimate.value:10.6f} ± {estimate.error:10.6f}"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:6.3f} ± {100 * estimate.error:5.3f} %"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
