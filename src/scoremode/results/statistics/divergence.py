"""Statistics of a model against its base, from Scores with a comparison; and the targets that differ
most.

All in nats, p the base's distribution and q the model's. KLD is KL(p‖q), the mean extra nats that
the model needs where the base says what is likely; it falls on every token, while a perplexity
sees one of them and may by luck be better than the base's. Everything here is paired: both models
are measured on the same tokens, so what makes a text hard cancels in differences and ratios.

`effects_by` has what a reader of the model's text may notice, and a mean of KLD hides:

- `confident_flips`: of the targets where the base's likeliest token had more than `confident` of the
  probability, the share where the model finds another one likeliest. Where a base hesitates a flip is
  a matter of taste; where it is sure it is an error.
- `halved`: the share of targets whose probability fell below half of the base's.
- `entropy_change`: the mean of the model's entropy less the base's, in nats, where both are known.
- `kld_p99`, `kld_p999`: one target in a hundred, in a thousand, is further off than this.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.bootstrap import Metric
from scoremode.results.statistics.means import Blocks, Mean, Percentile, percentile
from scoremode.text.plan import Plan
from scoremode.text.token_class import TokenTable

__all__ = [
    "CONFIDENT",
    "PERCENTS",
    "RARE",
    "TAILS",
    "Effects",
    "distribution",
    "divergence_means",
    "effects_by",
    "log_ratio",
    "percentiles_of",
    "rare",
    "stream_of",
    "worst_tokens",
]


Floats = NDArray[np.float64]

# Of the distributions, minimum and maximum apart.
PERCENTS = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
_TOP = 10
CONFIDENT = 0.9
# Shares of what may not have been seen at all.
RARE = ("confident_flips", "halved")
# Name of the metric → percent.
TAILS = {"kld_p99": 99.0, "kld_p999": 99.9}
_HALF = math.log(0.5)
_CONTEXT = 12


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


@dataclass(frozen=True, eq=False)
class Effects:
    """Of one group: `means` by the metric's name, and `tails`, the percentiles of KLD. A metric that
    the group has no target for is not there."""

    means: Mapping[str, Mean]
    tails: Mapping[str, Percentile]


def effects_by(
    scores: Scores,
    against: Comparison,
    blocks: Blocks,
    group: NDArray[np.integer],
    groups: int,
    confident: float = CONFIDENT,
) -> list[Effects]:
    """The effects in each of the groups 0 … groups - 1; `group`: int [N].

    A percentile counts each evaluation as one, whatever it weighs, as `distribution` does.
    """
    columns: dict[str, NDArray] = {"halved": scores.logprob < against.base_logprob + _HALF}
    if against.model_entropy is not None and against.base_entropy is not None:
        columns["entropy_change"] = against.model_entropy - against.base_entropy
    found = blocks.means_by(group, groups, columns)
    is_sure = np.exp(against.base_top1_logprob) > confident
    flips = {"confident_flips": scores.top1 != against.base_top1}
    # Those of whom the base is not sure are one group more, of which nothing is told.
    sure = blocks.means_by(np.where(is_sure, group, groups), groups + 1, flips)
    return [
        Effects(found[g] | sure[g], _tails(against.kld, blocks, group == g) if found[g] else {})
        for g in range(groups)
    ]


def rare(share: Metric) -> Metric:
    """One of RARE as it may be told: resampling what was never seen, or always, gives no interval."""
    if share.ci95 is None or 0 < share.value < 1:
        return share
    seen = "none" if share.value == 0 else "all"
    note = f"{seen} of {share.n:,} targets: blocks drawn again can't tell how rare others are"
    return Metric(share.value, None, share.n, note)


def _tails(
    kld: NDArray[np.float64], blocks: Blocks, rows: NDArray[np.bool_]
) -> dict[str, Percentile]:
    """The percentiles of `kld` [N] among these rows."""
    own, of = blocks if rows.all() else blocks.only(rows), kld[rows]
    ordered = np.sort(of)
    values = percentiles_of(ordered, tuple(TAILS.values()))
    return {
        name: percentile(of, percent, value, own, ordered)
        for (name, percent), value in zip(TAILS.items(), values, strict=True)
    }


def worst_tokens(
    scores: Scores,
    against: Comparison,
    *,
    plan: Plan | None = None,
    stream: NDArray[np.int32] | None = None,
    table: TokenTable | None = None,
    count: int = 10,
) -> list[dict[str, Any]]:
    """Plain facts about the `count` evaluations of largest KLD above 0, the earlier first on ties.

    A place of the text is taken once, by its worst evaluation: with overlapping windows one place
    would fill the list. With `table` there are the texts of the target and of both likeliest ids;
    with `plan`, or with the `stream` that the scores tell, of the 12 tokens before the target too, as
    its window has them.
    """
    kld, rows = against.kld.copy(), []
    for _ in range(count):
        i = int(kld.argmax())
        if not kld[i] > 0:
            break
        rows.append(i)
        kld[scores.index == scores.index[i]] = -np.inf
    return [
        _facts(scores, against, i)
        | _texts(scores, against, i, _before(scores, i, plan, stream), table)
        for i in rows
    ]


def stream_of(scores: Scores) -> NDArray[np.int32]:
    """int32: the token stream as far as it was scored, -1 for places that were not."""
    stream = np.full(int(scores.index.max()) + 1, -1, np.int32)
    stream[scores.index] = scores.target
    return stream


def _before(
    scores: Scores, i: int, plan: Plan | None, stream: NDArray[np.int32] | None
) -> NDArray[np.int32] | None:
    """The ids before a target in its window, as many as are known."""
    position, index = int(scores.position[i]), int(scores.index[i])
    if plan is not None:
        return plan[int(scores.window[i])].inputs[max(0, position - _CONTEXT) : position]
    if stream is None:
        return None
    before = stream[max(0, index - min(position, _CONTEXT)) : index]
    unknown = np.flatnonzero(before < 0)
    return before[unknown[-1] + 1 :] if len(unknown) else before


def _facts(scores: Scores, against: Comparison, i: int) -> dict[str, Any]:
    return {
        "window": int(scores.window[i]),
        "position": int(scores.position[i]),
        "index": int(scores.index[i]),
        "target": int(scores.target[i]),
        "p_base": float(np.exp(against.base_logprob[i])),
        "p_model": float(np.exp(scores.logprob[i])),
        "kld": float(against.kld[i]),
        "base_top1": int(against.base_top1[i]),
        "top1": int(scores.top1[i]),
    }


def _texts(
    scores: Scores,
    against: Comparison,
    i: int,
    before: NDArray[np.int32] | None,
    table: TokenTable | None,
) -> dict[str, Any]:
    if before is None or table is None:
        return {}
    return {
        "target_text": table.text([int(scores.target[i])]),
        "base_top1_text": table.text([int(against.base_top1[i])]),
        "top1_text": table.text([int(scores.top1[i])]),
        "context": table.text(before.tolist()),
    }
