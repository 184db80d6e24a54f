"""What layers are called with, kept once for all batches.

Masks and rotary tables are alike for all batches of a shape, and a dense mask for each would outgrow
everything else.
"""

from typing import Any

import torch

from scoremode.engines.torch.skeleton import Call

__all__ = ["merge_calls"]


def merge_calls(calls: list[Call], known: list[Call]) -> list[Call]:
    """`calls`, with every tensor replaced by the equal one of `known`, or of an earlier layer.

    Compared by value: what depends on the ids stays apart.
    """
    merged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def merge(value: Any, other: Any) -> Any:
        if isinstance(value, torch.Tensor):
            # Most layers get the very same tensor; each is compared once, which on a GPU is a wait.
            if id(value) not in merged:
                kept = [k for _, k in merged.values()]
                # `value` itself is known where these calls are the first ones.
                is_other = isinstance(other, torch.Tensor) and other is not value
                candidates = [other, *kept] if is_other else kept
                same = next((c for c in candidates if c is value or _same(c, value)), value)
                merged[id(value)] = (value, same)
            return merged[id(value)][1]
        if isinstance(value, tuple):
            others = other if isinstance(other, tuple) and len(other) == len(value) else value
            return tuple(merge(v, o) for v, o in zip(value, others, strict=True))
        return value

    return [
        Call(
            merge(call.args, old.args),
            {k: merge(v, old.kwargs.get(k)) for k, v in call.kwargs.items()},
            call.at,
        )
        for call, old in zip(calls, known, strict=True)
    ]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
