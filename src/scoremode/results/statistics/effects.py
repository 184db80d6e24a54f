"""Measures what a reader of a quantized model's text may notice, which a mean of KLD hides.

- `confident_flips`: of the targets where the base's likeliest token had more than `confident` of the
  probability, the share where the model finds another one likeliest. Where a base hesitates a flip is
  a matter of taste; where it is sure it is an error.
- `halved`: the share of targets whose probability fell below half of the base's.
- `entropy_change`: the mean of the model's entropy less the base's, in nats, where both are known.
- `kld_p99`, `kld_p999`: one target in a hundred, in a thousand, is further off than this.

All are of any group of targets, the whole text being one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.bootstrap import Metric
from scoremode.results.statistics.divergence import percentiles_of
from scoremode.results.statistics.means import Blocks, Mean
from scoremode.results.statistics.tail import Percentile, percentile

__all__ = ["CONFIDENT", "RARE", "TAILS", "Effects", "effects_by", "rare"]

CONFIDENT = 0.9
# Shares of what may not have been seen at all.
RARE = ("confident_flips", "halved")
# Name of the metric → percent.
TAILS = {"kld_p99": 99.0, "kld_p999": 99.9}
_HALF = math.log(0.5)


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
