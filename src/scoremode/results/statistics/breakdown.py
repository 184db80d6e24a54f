"""Means over groups of tokens, which tell where a divergence comes from.

Groups by depth are of long windows: by how many tokens stand before a target, which tells whether a
model fails late. They go by powers of two from 1,024 tokens on, which is how lengths are spoken of;
all below are one group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.metrics import log_ratio
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.divergence import CONFIDENT, effects_by
from scoremode.results.statistics.means import Blocks, Mean, Percentile
from scoremode.text.token_class import TOKEN_CLASSES

# Of the base's probability of its likeliest token; an edge belongs to the group above it.
CONFIDENCE_EDGES = (0.25, 0.5, 0.75, 0.95)
# Positions below this are one group: a window has only one of each.
_FIRST_POSITIONS = 16
# Places in an assistant's turn: its first token is what the template's end leaves to the model alone.
TURN_STARTS = (0, 1, 4, 16, 64, 256)

Ends = tuple[float, float | None]

_FIRST = 1024
# Some target has so many tokens before it, or there are no groups: windows of the usual protocols
# have none, and `position` tells of them.
_LONG = 4096


@dataclass(frozen=True, eq=False)
class Group:
    """Evaluations that belong together.

    - `of`: what they were grouped by: `confidence`, `position`, `token_class`, `label` or `turn`.
    - `name`: for people. `bounds`: the numbers behind it, None for a class; the last None where it has
      no end.
    - `n`, `share`: how many evaluations, and as a share of all.
    - `means`: against a base `kld` and `ppl_ratio`; of a `label` or `turn` also `ppl`, without a base
      that alone, and against one `top1` and the `effects`, whose percentiles are `tails`.
    """

    of: str
    name: str
    bounds: Ends | None
    n: int
    share: float
    means: dict[str, Mean]
    tails: Mapping[str, Percentile] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the group without the means, whose intervals are not known here."""
        ends = {} if self.bounds is None else {"from": self.bounds[0], "to": self.bounds[1]}
        return {"group": self.name, **ends, "n": self.n, "share": self.share}


def groups(
    scores: Scores,
    against: Comparison,
    blocks: Blocks,
    token_class: NDArray[np.uint8] | None = None,
) -> list[Group]:
    """All groups in order, but for those that weigh nothing.

    By the base's confidence in its likeliest token, by the target's position in its window, and
    where `token_class` (uint8 [N], places in TOKEN_CLASSES) is given, by the target's class.
    """
    found: list[Group] = []

    def add(of: str, group: NDArray, names: list[str], bounds: Sequence[Ends] | None) -> None:
        columns = {"kld": against.kld, "ppl_ratio": log_ratio(scores, against)}
        found.extend(_groups(of, group, names, bounds, blocks, columns))

    edges = (0.0, *CONFIDENCE_EDGES, 1.0)
    confidence = np.digitize(np.exp(against.base_top1_logprob), CONFIDENCE_EDGES)
    between = list(pairwise(edges))
    add("confidence", confidence, [f"{low:g} to {high:g}" for low, high in between], between)

    starts = _position_starts(int(scores.position.max()))
    ends = [*(start - 1 for start in starts[1:]), int(scores.position.max())]
    spans = list(zip(starts, ends, strict=True))
    names = [f"{low} to {high}" if high > low else f"{low}" for low, high in spans]
    add("position", np.digitize(scores.position, starts) - 1, names, list(spans))

    if token_class is not None:
        assert token_class.max() < len(TOKEN_CLASSES), token_class.max()
        add("token_class", token_class, list(TOKEN_CLASSES), None)
    return found


def labelled_groups(
    scores: Scores,
    blocks: Blocks,
    *,
    label: NDArray[np.object_] | None,
    turn_place: NDArray[np.int32] | None,
    confident: float = CONFIDENT,
) -> list[Group]:
    """Groups by the texts `label` [N], the worst first (of largest KLD; without a base of largest PPL),
    and by `turn_place` [N], the target's place in its assistant's turn, in order; those of None, none.

    `confident`: the probability that makes the base sure, for `effects`.
    """
    columns: dict[str, NDArray] = {"ppl": scores.nll}
    if (against := scores.against) is not None:
        columns |= {"kld": against.kld, "ppl_ratio": log_ratio(scores, against)}
        columns |= {"top1": scores.top1 == against.base_top1, "acceptance": 1 - against.tv}

    def made(
        of: str, group: NDArray, names: list[str], bounds: Sequence[Ends] | None
    ) -> list[Group]:
        own = _groups(of, group, names, bounds, blocks, columns)
        if against is None:
            return own
        effects = effects_by(scores, against, blocks, group, len(names), confident)
        by_name = dict(zip(names, effects, strict=True))
        return [
            replace(
                one, means={**one.means, **by_name[one.name].means}, tails=by_name[one.name].tails
            )
            for one in own
        ]

    found: list[Group] = []
    if label is not None:
        names, group = coded(label)
        by = "ppl" if against is None else "kld"
        labels = made("label", group, names, None)
        found += sorted(labels, key=lambda one: -one.means[by].value)
    if turn_place is not None:
        ends = [start - 1 for start in TURN_STARTS[1:]]
        names = [
            f"{a} to {b}" if b > a else f"{a}" for a, b in zip(TURN_STARTS, ends, strict=False)
        ]
        names.append(f"{TURN_STARTS[-1]} and more")
        spans: list[Ends] = list(zip(TURN_STARTS, [*ends, None], strict=True))
        found += made("turn", np.digitize(turn_place, TURN_STARTS) - 1, names, spans)
    return found


def coded(label: NDArray[np.object_]) -> tuple[list[str], NDArray[np.int64]]:
    """The different texts of `label` [N], sorted, and the place of each among them, [N]."""
    texts = label.tolist()
    names = sorted(set(texts))
    place = {name: i for i, name in enumerate(names)}
    return names, np.fromiter((place[text] for text in texts), np.int64, len(texts))


def within(values: NDArray, group: NDArray[np.integer]) -> NDArray[np.float64]:
    """float64 [N]: `values` less the mean of their group's; `group`: int [N]."""
    sums = np.bincount(group, weights=values)
    return values - (sums / np.maximum(np.bincount(group), 1))[group]


def _groups(
    of: str,
    group: NDArray[np.integer],
    names: list[str],
    bounds: Sequence[Ends] | None,
    blocks: Blocks,
    columns: Mapping[str, NDArray],
) -> list[Group]:
    """Groups that weigh anything, with the means of `columns`; `group` [N]: places in `names`."""
    counts, found = np.bincount(group, minlength=len(names)), []
    for g, means in enumerate(blocks.means_by(group, len(names), columns)):
        if means:
            for name in means.keys() & {"ppl_ratio", "ppl"}:
                means[name] = means[name].through(np.exp)
            n = int(counts[g])
            ends = bounds[g] if bounds else None
            found.append(Group(of, names[g], ends, n, n / len(group), means))
    return found


def _position_starts(last: int) -> list[int]:
    """1, 16, 32, 64 … up to the last position."""
    starts, start = [1], _FIRST_POSITIONS
    while start <= last:
        starts.append(start)
        start *= 2
    return starts


def depth_groups(scores: Scores, blocks: Blocks) -> list[Group]:
    """Groups `depth` in order, but for those that weigh nothing: `ppl`, against a base also `kld`,
    `ppl_ratio`, `top1` and `acceptance`. None for windows of up to 4,096 tokens."""
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
        columns |= {"top1": scores.top1 == against.base_top1, "acceptance": 1 - against.tv}
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
