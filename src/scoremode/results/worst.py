"""The tokens that a model predicts most unlike its base, with the text around them."""

from typing import Any

import numpy as np

from scoremode.results.scores import Comparison, Scores
from scoremode.text.plan import Plan
from scoremode.text.token_class import TokenTable

__all__ = ["worst_tokens"]

_CONTEXT = 12


def worst_tokens(
    scores: Scores,
    against: Comparison,
    *,
    plan: Plan | None = None,
    table: TokenTable | None = None,
    count: int = 10,
) -> list[dict[str, Any]]:
    """Plain facts about the `count` evaluations of largest KLD above 0, the earlier first on ties.

    A place of the text is taken once, by its worst evaluation: with overlapping windows one place
    would fill the list. With `plan` and `table` there are the texts of the target, of both
    likeliest ids, and of the 12 tokens before the target, as its window has them.
    """
    kld, rows = against.kld.copy(), []
    for _ in range(count):
        i = int(kld.argmax())
        if not kld[i] > 0:
            break
        rows.append(i)
        kld[scores.index == scores.index[i]] = -np.inf
    return [_facts(scores, against, i) | _texts(scores, against, i, plan, table) for i in rows]


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
    scores: Scores, against: Comparison, i: int, plan: Plan | None, table: TokenTable | None
) -> dict[str, Any]:
    if plan is None or table is None:
        return {}
    position = int(scores.position[i])
    before = plan[int(scores.window[i])].inputs[max(0, position - _CONTEXT) : position]
    return {
        "target_text": table.text([int(scores.target[i])]),
        "base_top1_text": table.text([int(against.base_top1[i])]),
        "top1_text": table.text([int(scores.top1[i])]),
        "context": table.text(before.tolist()),
    }
