"""Logits of two models, and their sums gathered in tiles, for the tests of the head."""

from dataclasses import fields, replace

import torch

from scoremode.head.divergence import PairSums


class Given:
    """Logits [N, V] that are there, as an engine's."""

    def __init__(self, logits: torch.Tensor):
        self._logits = logits

    def load(self, begin: int, end: int) -> None:
        self._tile = self._logits[:, begin:end]

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        tile = self._tile[block]
        return tile.to(torch.float32, copy=True) if out is None else out.copy_(tile)


def logits(rows=64, entries=3000, *, sharpness=3.0, noise=0.3, offset=0.0, seed=0):
    """float32 [N, V] of a base and of a model that is near it, and targets."""
    generator = torch.Generator().manual_seed(seed)
    base = sharpness * torch.randn(rows, entries, generator=generator)
    likely = torch.randint(0, entries, (rows,), generator=generator)
    base[torch.arange(rows), likely] += 12.0
    model = base + noise * torch.randn(rows, entries, generator=generator) + offset
    target = torch.randint(0, entries, (rows,), generator=generator)
    return base, model, target


def gather(base, model, target, tile=(50, 700), device="cpu", vocabulary=None):
    sums = PairSums(len(base), torch.device(device))
    rows, entries = tile
    base, model, target = (x.to(device) for x in (base, model, target))
    for begin in range(0, vocabulary or base.shape[1], entries):
        for low in range(0, len(base), rows):
            block = slice(low, min(low + rows, len(base)))
            part = slice(begin, begin + entries)
            sums.consume(
                block, base[block, part].clone(), model[block, part].clone(), target[block], begin
            )
    return sums


def on_cpu(scores):
    """The same PairScores or HeadScores with every column on the CPU."""
    if isinstance(scores, torch.Tensor):
        return scores.cpu()
    if isinstance(scores, dict):
        return {name: on_cpu(column) for name, column in scores.items()}
    if scores is None:
        return None
    return replace(scores, **{f.name: on_cpu(getattr(scores, f.name)) for f in fields(scores)})
