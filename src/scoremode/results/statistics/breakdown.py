"""Tells where a divergence comes from: means over groups of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.divergence import log_ratio
from scoremode.results.statistics.means import Blocks, Mean
from scoremode.text.token_class import TOKEN_CLASSES

__all__ = ["CONFIDENCE_EDGES", "Group", "groups"]

# Of the base's probability of its likeliest token; an edge belongs to the group above it.
CONFIDENCE_EDGES = (0.25, 0.5, 0.75, 0.95)
# Positions below this are one group: a window has only one of each.
_FIRST_POSITIONS = 16


@dataclass(frozen=True, eq=False)
class Group:
    """Evaluations that belong together.

    - `of`: what they were grouped by: `confidence`, `position`, `token_class` or `label`.
    - `name`: for people. `bounds`: the numbers behind it, None for a class.
    - `n`, `share`: how many evaluations, and as a share of all.
    - `means`: `kld` and `ppl_ratio`; of a `label` also `ppl` and `top1`.
    """

    of: str
    name: str
    bounds: tuple[float, float] | None
    n: int
    share: float
    means: dict[str, Mean]

    def to_json(self) -> dict[str, Any]:
        """Returns the group without the means, whose intervals are not known here."""
        ends = {} if self.bounds is None else {"from": self.bounds[0], "to": self.bounds[1]}
        return {"group": self.name, **ends, "n": self.n, "share": self.share}


def groups(
    scores: Scores,
    against: Comparison,
    blocks: Blocks,
    token_class: NDArray[np.uint8] | None = None,
    label: NDArray[np.object_] | None = None,
) -> list[Group]:
    """All groups in order, but for those that weigh nothing.

    By the base's confidence in its likeliest token, by the target's position in its window, and
    where `token_class` (uint8 [N], places in TOKEN_CLASSES) is given, by the target's class; by the
    texts `label` [N], the group of largest KLD first.
    """
    few = {"kld": against.kld, "ppl_ratio": log_ratio(scores, against)}
    found: list[Group] = []

    def add(
        of: str,
        group: NDArray,
        names: list[str],
        bounds: list[tuple[float, float]] | None,
        columns: Mapping[str, NDArray] = few,
    ) -> None:
        counts = np.bincount(group, minlength=len(names))
        for g, means in enumerate(blocks.means_by(group, len(names), columns)):
            if means:
                for name in means.keys() & {"ppl_ratio", "ppl"}:
                    means[name] = means[name].through(np.exp)
                ends, n = bounds[g] if bounds else None, int(counts[g])
                found.append(Group(of, names[g], ends, n, n / len(scores), means))

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
    if label is not None:
        names, group = np.unique(label.astype(str), return_inverse=True)
        more = {"ppl": scores.nll, "top1": scores.top1 == against.base_top1}
        before = len(found)
        add("label", group, names.tolist(), None, few | more)
        found[before:] = sorted(found[before:], key=lambda each: -each.means["kld"].value)
    return found


def _position_starts(last: int) -> list[int]:
    """1, 16, 32, 64 … up to the last position."""
    starts, start = [1], _FIRST_POSITIONS
    while start <= last:
        starts.append(start)
        start *= 2
    return starts
