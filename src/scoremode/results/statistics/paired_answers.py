"""Two models' answers to the same questions: what accuracy hides.

An accuracy that stays the same may hide as many questions lost as gained (Dutta et al., "Accuracy is
not all you need", arXiv 2407.09141), so both are counted. Whether one side outweighs the other is
McNemar's question, answered exactly: of the questions that flipped, each way is as likely as the other
if the models are equally good.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.statistics.bootstrap import MIN_BLOCKS, block_bootstrap

__all__ = ["mcnemar", "paired_answers"]


def mcnemar(lost: int, gained: int) -> float:
    """The exact two-sided p-value of so many flips either way, 1 for none: twice the binomial tail, at
    most 1."""
    n, fewer = lost + gained, min(lost, gained)
    # Whole numbers, of which Python's division rounds once, however long they are.
    tail = term = 1
    for k in range(fewer):
        term = term * (n - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def paired_answers(own: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, Any]:
    """What a metric of the same questions says of two models.

    `own`, `base`: float64 [N], the metric of each question. `difference` is the mean of own − base with
    its 95 % interval, from a bootstrap of whole questions. Of right and wrong answers, 1 and 0, also
    how many were `lost` and `gained`, and McNemar's exact `p`.
    """
    change = own - base
    interval = block_bootstrap(change, np.ones_like(change))
    note = None if interval else f"{len(change)} questions: an interval needs at least {MIN_BLOCKS}"
    found: dict[str, Any] = {
        "difference": {
            "value": float(change.mean()),
            "ci95": None if interval is None else list(interval),
            "n": len(change),
            "note": note,
        }
    }
    if np.isin(np.concatenate([own, base]), (0.0, 1.0)).all():
        lost, gained = int((change < 0).sum()), int((change > 0).sum())
        found |= {"lost": lost, "gained": gained, "p": mcnemar(lost, gained)}
    return found
