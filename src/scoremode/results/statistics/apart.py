"""Where the Scores of two engines part: by the targets' positions, and at single targets.

The mean of all differences hides a fault that begins somewhere. What goes wrong in a KV cache, in a
position's rotation or at a sliding window's edge shows in positions: it grows along a window, or begins
at one place. So bins are of positions that double, as the lengths do at which such things begin.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import MIN_TARGETS
from scoremode.text.plan import Plan
from scoremode.text.token_class import TokenTable

# Positions of the first bin end before this one: fewer have few targets.
_FIRST = 16
# Tokens before a target that are shown with it.
_CONTEXT = 12


def edges_of(longest: int) -> list[int]:
    """The positions that bins begin with, for positions 1 … `longest`, and the one behind the last."""
    edges = [1]
    while (edge := max(_FIRST, 2 * edges[-1])) <= longest:
        edges.append(edge)
    return [*edges, longest + 1]


def by_position(scores: Scores, others: Scores) -> list[dict[str, Any]]:
    """Differences, nll − nll in nats, of Scores of the same targets, by position in the window.

    A bin with targets has `first` and `last` position, `n` targets, `rms`, `bias` (the mean), and
    `top1`, the share where both find the same id the likeliest.
    """
    d, same = scores.nll - others.nll, scores.top1 == others.top1
    edges = edges_of(int(scores.position.max()))
    place = np.searchsorted(edges, scores.position, "right") - 1
    found = []
    for number, (first, after) in enumerate(pairwise(edges)):
        rows = place == number
        if rows.any():
            own = d[rows]
            found.append(
                {
                    "first": first,
                    "last": after - 1,
                    "n": int(rows.sum()),
                    "rms": float(np.sqrt((own**2).mean())),
                    "bias": float(own.mean()),
                    "top1": float(same[rows].mean()),
                }
            )
    return found


def growth(bins: list[dict[str, Any]]) -> float | None:
    """The rms of the last bin of `by_position` over that of the first, of those with targets enough.

    What rounding leaves is about as large everywhere. None for fewer than two such bins, and where the
    first differs by nothing.
    """
    told = [each["rms"] for each in bins if each["n"] >= MIN_TARGETS]
    return told[-1] / told[0] if len(told) > 1 and told[0] > 0 else None


def worst_targets(
    scores: Scores,
    others: Scores,
    count: int,
    *,
    plan: Plan,
    table: TokenTable | None = None,
) -> list[dict[str, Any]]:
    """The `count` targets whose log-probabilities differ most, the worst first, none that are equal.

    - `plan`: of both Scores; `table`: with it there are the texts of the target, of the 12 tokens
      before it, and of what each finds the likeliest.

    A place of the text is taken once, by its worst evaluation: with overlapping windows one place would
    fill the list. `difference` is nll − nll in nats.
    """
    d = scores.nll - others.nll
    left, found = np.abs(d), []
    for _ in range(count):
        i = int(left.argmax())
        if not left[i] > 0:
            break
        left[scores.index == scores.index[i]] = -np.inf
        found.append(_facts(scores, others, d, i) | _texts(scores, others, i, plan, table))
    return found


def _facts(scores: Scores, others: Scores, d: NDArray[np.float64], i: int) -> dict[str, Any]:
    return {
        "window": int(scores.window[i]),
        "position": int(scores.position[i]),
        "index": int(scores.index[i]),
        "target": int(scores.target[i]),
        "logprob": float(scores.logprob[i]),
        "other_logprob": float(others.logprob[i]),
        "difference": float(d[i]),
        "top1": int(scores.top1[i]),
        "other_top1": int(others.top1[i]),
    }


def _texts(
    scores: Scores, others: Scores, i: int, plan: Plan, table: TokenTable | None
) -> dict[str, str]:
    if table is None:
        return {}
    position = int(scores.position[i])
    before = plan[int(scores.window[i])].inputs[max(0, position - _CONTEXT) : position]
    return {
        "target_text": table.text([int(scores.target[i])]),
        "top1_text": table.text([int(scores.top1[i])]),
        "other_top1_text": table.text([int(others.top1[i])]),
        "context": table.text(before.tolist()),
    }
