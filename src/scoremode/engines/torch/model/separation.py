"""Proof that a model's layers may be run apart from its forward, made before any has run.

The stand-ins see that the hidden state goes from layer to layer untouched. What they can't see is other
use of what a layer returns: by a later layer (a long skip), or after the last one. So the forward is
run with layers that seem to return something else, and everything else must stay as it is.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS, Skeleton
from scoremode.engines.torch.model.stand_ins import NotSeparable, Unread

__all__ = ["prove_separable"]

_TOKENS = 4


def prove_separable(skeleton: Skeleton) -> None:
    """Raises NotSeparable, saying what does not hold; learns what the final norm can do without."""
    # Unlike each other, and states unlike the embedding's: Inkling 2 mixes both behind its layers,
    # and a mixture of two that are alike is either of them.
    ids = torch.arange(2 * _TOKENS, device=skeleton.device).view(2, _TOKENS) % 4
    recorded = skeleton.record(ids)
    drawn = torch.randn(recorded.embedded.shape, generator=torch.Generator().manual_seed(0))
    hidden = drawn.to(recorded.embedded)
    perturbed = skeleton.record(ids, perturb=True)
    for call, other in zip(recorded.calls, perturbed.calls, strict=True):
        ours, theirs = (list(_tensors((c.args, c.kwargs))) for c in (call, other))
        if len(ours) != len(theirs) or not all(map(_equal, ours, theirs)):
            raise NotSeparable("its layers use the output of other layers than the one before")
    final = skeleton.finish(ids, hidden)
    if final.dim() != 3 or final.shape[:2] != ids.shape:
        raise NotSeparable("what its head gets is not one row a token")
    if not _equal(final, skeleton.finish(ids, hidden, perturb=True)):
        raise NotSeparable("its forward uses the output of other layers than the last")
    # Embedding a pass again for its final norm costs as much as the norm itself, and more.
    skeleton.embeds_at_end = False
    try:
        without = skeleton.finish(ids, hidden)
    except FORWARD_ERRORS:
        # CPM-Ant embeds its prompts by the same table, and wants another shape of them.
        skeleton.embeds_at_end = True
    else:
        skeleton.embeds_at_end = not _equal(final, without)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, Unread):
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=0, atol=0, equal_nan=a.is_floating_point())
    )
