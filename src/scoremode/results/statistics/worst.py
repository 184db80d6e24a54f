"""The tokens that a model predicts most unlike its base, with the text around them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Comparison, Scores
from scoremode.text.plan import Plan
from scoremode.text.token_class import TokenTable

__all__ = ["stream_of", "worst_tokens"]

_CONTEXT = 12


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
