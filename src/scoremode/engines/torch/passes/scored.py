"""The head's results for the states of a micro-batch, alone or against a base."""

from typing import Any

import torch

from scoremode.engines.torch.clock import DeviceClock
from scoremode.engines.torch.pending import to_host
from scoremode.engines.work import Work
from scoremode.head.full import full_pairs
from scoremode.head.project import Head, HeadLogits, score_pairs, score_rows, tile_of
from scoremode.reference.base import Span

__all__ = ["score_states"]


def score_states(
    head: Head,
    work: Work,
    rows: Span,
    states: torch.Tensor,
    target: torch.Tensor,
    clock: DeviceClock,
) -> list[Any]:
    """Results with `columns` for the plan's scored targets `rows`, int64 [N], and their states [N, D],
    on their way to the host."""
    reference, device = work.extras.reference, states.device
    if reference is None:
        with clock.stage("head"):
            return [to_host(score_rows(head, states, target))]
    tile = tile_of(device)
    with clock.stage("reference"):
        base = reference.logits([rows], device, tile)
    with clock.stage("head"):
        model, entries = HeadLogits(head, states, tile), head.vocabulary
        extra = reference.extra_sums
        pair = score_pairs(target, entries, model=model, base=base, extra=extra, tile=tile)
        found: list[Any] = [pair]
        if work.extras.full:
            found.append(full_pairs(pair, entries, model=model, base=base, tile=tile))
        return [to_host(result) for result in found]
