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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.metrics import METRICS, delta_p
from scoremode.results.record.section import Metric
from scoremode.results.scores import Base, Comparison, Scores
from scoremode.results.statistics.means import Blocks, Mean, Percentile, percentile
from scoremode.text.plan import Plan
from scoremode.text.token_class import TokenTable

Floats = NDArray[np.float64]

# Of the distributions, minimum and maximum apart.
PERCENTS = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
CONFIDENT = 0.9
_CONTEXT = 12


def divergence_means(scores: Scores, against: Base, blocks: Blocks) -> dict[str, Mean]:
    """The means of a comparison, or of its bounds, that no group has, by their keys in METRICS."""
    found = {}
    for metric in METRICS:
        if metric.column is None or metric.by_group or not isinstance(against, metric.needs):
            continue
        column = metric.column(scores, against)
        if column is not None and (mean := blocks.mean(column)) is not None:
            found[metric.key] = mean if metric.then is None else mean.through(metric.then)
    return found


def distribution(scores: Scores, against: Comparison) -> dict[str, dict[str, float]]:
    """Minimum, percentiles and maximum of every divergence and of Δp over all evaluations.

    An evaluation counts as one, whatever it weighs. Keys are percents as text, `minimum` and
    `maximum`.
    """
    columns = {**_divergences(against), "delta_p": delta_p(scores, against)}
    return {name: _percentiles(column) for name, column in columns.items()}


def _divergences(against: Comparison) -> Mapping[str, Floats]:
    named = {
        name: getattr(against, name) for name in ("kld", "kld_reverse", "tv", "tv_draft", "jsd")
    }
    return {name: column for name, column in named.items() if column is not None}


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
    """Metrics of one group: `means` by the metric's key, and `tails`, the percentiles of KLD. A
    metric that the group has no target for is not there."""

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
    columns: dict[str, NDArray] = {}
    counted: list[tuple[NDArray[np.bool_], dict[str, NDArray]]] = []
    for metric in METRICS:
        if metric.column is None or not metric.by_group:
            continue
        if (column := metric.column(scores, against)) is None:
            continue
        if metric.where is None:
            columns[metric.key] = column
        else:
            counted.append((metric.where(against, confident), {metric.key: column}))
    found = blocks.means_by(group, groups, columns)
    for rows, column_of in counted:
        # The targets that don't count are one group more, which is discarded.
        means = blocks.means_by(np.where(rows, group, groups), groups + 1, column_of)
        found = [own | further for own, further in zip(found, means, strict=False)]
    return [
        Effects(found[g], _tails(against.kld, blocks, group == g) if found[g] else {})
        for g in range(groups)
    ]


def rare(share: Metric) -> Metric:
    """A `rare` metric as it may be told: resampling what was never seen, or always, tells nothing."""
    if share.ci95 is None or 0 < share.value < 1:
        return share
    seen = "none" if share.value == 0 else "all"
    note = f"{seen} of {share.n:,} targets: blocks drawn again can't tell how rare others are"
    return Metric(share.value, None, share.n, note)


def _tails(
    kld: NDArray[np.float64], blocks: Blocks, rows: NDArray[np.bool_]
) -> dict[str, Percentile]:
    """The percentiles of `kld` [N] among these rows."""
    own, values = blocks if rows.all() else blocks.only(rows), kld[rows]
    ordered = np.sort(values)
    return {
        metric.key: percentile(
            values, metric.percent, percentiles_of(ordered, (metric.percent,))[0], own, ordered
        )
        for metric in METRICS
        if metric.percent is not None
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
