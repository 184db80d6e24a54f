"""The model's own forward up to its layers: the first one's input, and what each is called with.

It runs for every batch. The masks and rotary tables that it makes are alike for all batches of a shape,
and kept once for all of them: a dense mask for each would outgrow everything else.
"""

from typing import Any

import torch

from scoremode.engines.torch.model.forest import ForestIds, Ids
from scoremode.engines.torch.model.skeleton import Recorded, Skeleton
from scoremode.engines.torch.model.stand_ins import Call, Unread

__all__ = ["Preamble", "merge_calls"]


class Preamble:
    """A model's forward up to its layers, for batch after batch."""

    def __init__(self, skeleton: Skeleton):
        self._skeleton = skeleton
        # By the ids' shape: the calls of the first batch that had it.
        self._known: dict[torch.Size, list[Call]] = {}

    def run(self, ids: Ids) -> Recorded:
        """The first layer's input [B, T, D] for ids [B, T], and every layer's call."""
        recorded = self._skeleton.record(ids)
        if isinstance(ids, ForestIds):
            # No other rows have the same masks and positions.
            return Recorded(recorded.embedded, merge_calls(recorded.calls, recorded.calls))
        known = self._known.get(ids.shape)
        calls = merge_calls(recorded.calls, known or recorded.calls)
        if known is None:
            # Only the last shape is kept: the plan's windows are all alike but for a short tail.
            self._known = {ids.shape: calls}
        return Recorded(recorded.embedded, calls)


def merge_calls(calls: list[Call], known: list[Call]) -> list[Call]:
    """`calls`, with every tensor replaced by the equal one of `known`, or of an earlier layer.

    Compared by value: what depends on the ids stays apart.
    """
    merged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def merge(value: Any, other: Any) -> Any:
        if isinstance(value, torch.Tensor) and not isinstance(value, Unread):
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
