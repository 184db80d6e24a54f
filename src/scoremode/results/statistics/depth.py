"""Means by how many tokens stand before a target, in long windows: whether a model fails late.

By powers of two from 1,024 tokens on, which is how lengths are spoken of; all below are one group.
"""

import numpy as np

from scoremode.results.scores import Scores
from scoremode.results.statistics.breakdown import Group
from scoremode.results.statistics.divergence import log_ratio
from scoremode.results.statistics.means import Blocks

__all__ = ["depth_groups"]

_FIRST = 1024
# Some target has so many tokens before it, or there are no groups: windows of the usual protocols
# have none, and `position` tells of them.
_LONG = 4096


def depth_groups(scores: Scores, blocks: Blocks) -> list[Group]:
    """Groups `depth` in order, but for those that weigh nothing: `ppl`, against a base also `kld`,
    `ppl_ratio` and `top1`. None for windows of up to 4,096 tokens."""
    last = int(scores.position.max())
    if last < _LONG:
        return []
    starts = [1]
    while (start := _FIRST << (len(starts) - 1)) <= last:
        starts.append(start)
    ends = [*(start - 1 for start in starts[1:]), last]
    columns = {"ppl": scores.nll}
    if (against := scores.against) is not None:
        columns |= {"kld": against.kld, "ppl_ratio": log_ratio(scores, against)}
        columns |= {"top1": scores.top1 == against.base_top1}
    group = np.digitize(scores.position, starts) - 1
    counts = np.bincount(group, minlength=len(starts))
    found = []
    for g, means in enumerate(blocks.means_by(group, len(starts), columns)):
        if not means:
            continue
        for name in means.keys() & {"ppl", "ppl_ratio"}:
            means[name] = means[name].through(np.exp)
        n, share = int(counts[g]), float(counts[g] / len(scores))
        name = f"from {starts[g] >> 10}k" if g else f"below {_FIRST >> 10}k"
        found.append(Group("depth", name, (starts[g], ends[g]), n, share, means))
    return found
