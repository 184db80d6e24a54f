"""Sums that a score needs of a row of logits, gathered in one pass over any part of the vocabulary.

A row is absorbed as running maximum, its entry, sum of exponentials, probability-weighted logit and
the target's logit, so logits can come in tiles (the torch engine), in whole blocks (vLLM's) or as
one rank's share of the vocabulary, whose results are then merged in rank order. Sums run in float64
over float32 pieces; the order is fixed, so the result is the same on every run. On CUDA one Triton
launch a part reads each logit once and goes on from the running state (`kernels.py`); elsewhere plain
torch does the same in tiles that stay in the cache. The KL
divergence from another model's logits is made of such sums over the same tiles (`divergence.py`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.errors import EngineError
from scoremode.lib.fallback import NotBuilt, building

# float32 entries of one tile of a block of logits: 4 MiB, inside a shared cache.
_CPU_TILE = 1 << 20


def has_kernels(device: torch.device) -> bool:
    """Tells whether sums on `device` are the kernels' and not plain torch's.

    The two round apart in the last digits, so where there are kernels nothing takes their place.
    """
    return device.type == "cuda"


@contextmanager
def kernels() -> Iterator[None]:
    """Surrounds a kernel's import and launch. Raises EngineError, since nothing takes its place."""
    try:
        with building():
            yield
    except (ImportError, NotBuilt) as error:
        raise EngineError(f"scoring on CUDA needs Triton: {error}") from None


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Per row, on the device that computed them.

    - `logprob` float64 [N]: of the target; `top1_logprob` float64 [N]: of the largest logit.
    - `top1` int64 [N]: the largest logit's id, the smallest such id on ties.
    - `entropy` float64 [N]: of the whole distribution, in nats; None if it was not asked for.
    """

    logprob: torch.Tensor
    top1: torch.Tensor
    top1_logprob: torch.Tensor
    entropy: torch.Tensor | None = None

    def columns(self) -> dict[str, NDArray]:
        """`logprob`, `top1`, `top1_logprob` as Scores have them."""
        return {
            "logprob": self.logprob.cpu().numpy(),
            "top1": self.top1.cpu().numpy().astype(np.int32),
            "top1_logprob": self.top1_logprob.cpu().numpy(),
        }


class RowSums:
    """The running state of `n` rows.

    A NaN or +inf logit makes its row's log-probability non-finite, and so does a -inf one of the
    target; -inf of another entry is a probability of zero. Nothing is clamped. A target that no
    absorbed part held has the log-probability NaN.
    """

    def __init__(self, n: int, device: torch.device, *, entropy: bool = False):
        self.max = torch.full((n,), -torch.inf, dtype=torch.float32, device=device)
        self.sum = torch.zeros(n, dtype=torch.float64, device=device)
        # Σ (z - max)·exp(z - max), for the entropy.
        self.dot = torch.zeros(n, dtype=torch.float64, device=device) if entropy else None
        self.top1 = torch.zeros(n, dtype=torch.int64, device=device)
        self.target = torch.full((n,), torch.nan, dtype=torch.float32, device=device)

    def absorb(self, rows: slice, z: torch.Tensor, target: torch.Tensor, begin: int) -> None:
        """Takes in float logits `z` [R, E] of the entries `begin … begin + E`, left as they are.

        - `target` int64 [R]: ids over the whole vocabulary.
        """
        if has_kernels(z.device):
            with kernels():
                from scoremode.head.kernels import absorb_rows

                absorb_rows(z, target, begin, self.of(rows))
            return
        step = max(1, _CPU_TILE // max(1, len(z)))
        for low in range(0, z.shape[1], step):
            tile = z[:, low : low + step]
            tile = tile.clone() if tile.dtype == torch.float32 else tile.float()
            self.consume(rows, tile, target, begin + low)

    def of(self, rows: slice) -> tuple[Any, ...]:
        """The state of `rows` as the kernels take it, to be changed in place."""
        state = self.max, self.sum, self.dot, self.top1, self.target
        return tuple(None if part is None else part[rows] for part in state)

    def consume(
        self, rows: slice, z: torch.Tensor, target: torch.Tensor, begin: int
    ) -> torch.Tensor:
        """`absorb` of float32 logits in plain torch, which destroys them.

        Returns exp(z - max) [R, E], about the maximum of all that was taken in so far; without
        entropy it is in the memory of `z`.
        """
        here = ((target >= begin) & (target < begin + z.shape[1])).nonzero().squeeze(1)
        self.target[rows][here] = z[here, target[here] - begin]
        peak = z.amax(1)
        old = self.max[rows]
        # The argmax is wanted only where this tile beats all before it, which soon gets rare;
        # a strict comparison keeps the first of equal entries.
        better = (peak > old).nonzero().squeeze(1)
        self.top1[rows][better] = z[better].argmax(1) + begin
        new = torch.maximum(old, peak)
        # As long as every logit is -inf there is nothing to subtract.
        pivot = new.masked_fill(new == -torch.inf, 0.0)
        z.sub_(pivot.unsqueeze(1))
        shift = old.double() - pivot.double()
        scale = shift.exp()
        if self.dot is not None:
            power = z.exp()
            # -inf · 0 is a probability of zero, which adds nothing.
            tile_dot = z.masked_fill_(z == -torch.inf, 0.0).mul_(power).sum(1)
            self.dot[rows] = _shifted(self.dot[rows], self.sum[rows], shift, scale) + tile_dot
        else:
            power = z.exp_()
        self.sum[rows] = self.sum[rows] * scale + power.sum(1)
        self.max[rows] = new
        return power

    def merge(self, later: "RowSums") -> Self:
        """Itself, with the sums of the same rows over entries that come after all of these."""
        # A NaN maximum must win and stay.
        new = torch.maximum(self.max, later.max)
        pivot = new.masked_fill(new == -torch.inf, 0.0).double()
        ours, theirs = self.max.double() - pivot, later.max.double() - pivot
        if self.dot is not None and later.dot is not None:
            self.dot = _shifted(self.dot, self.sum, ours, ours.exp()) + _shifted(
                later.dot, later.sum, theirs, theirs.exp()
            )
        self.sum = self.sum * ours.exp() + later.sum * theirs.exp()
        self.top1 = torch.where(later.max > self.max, later.top1, self.top1)
        self.target = torch.where(later.target.isnan(), self.target, later.target)
        self.max = new
        return self

    def pack(self) -> torch.Tensor:
        """float64 [N, 5] or [N, 4]: the whole state, to be sent to other ranks."""
        columns = [self.max, self.sum, self.top1, self.target]
        columns += [] if self.dot is None else [self.dot]
        return torch.stack([c.double() for c in columns], 1)

    @classmethod
    def unpacked(cls, columns: torch.Tensor) -> Self:
        """The inverse of `pack`."""
        part = cls(0, columns.device)
        part.max, part.sum = columns[:, 0].float(), columns[:, 1]
        part.top1, part.target = columns[:, 2].long(), columns[:, 3].float()
        part.dot = columns[:, 4] if columns.shape[1] == 5 else None
        return part

    @classmethod
    def merged(cls, packed: Sequence[torch.Tensor]) -> Self:
        """The state of all ranks from each one's `pack`, in the order of their entries."""
        return reduce(cls.merge, map(cls.unpacked, packed))

    def finish(self) -> HeadScores:
        # The largest entry's own logit is the maximum, so its log-probability is -log(sum), and a
        # target that is that entry gets exactly the same number.
        log_sum = self.sum.log()
        logprob = (self.target.double() - self.max.double()) - log_sum
        entropy = None if self.dot is None else log_sum - self.dot / self.sum
        return HeadScores(logprob, self.top1, -log_sum, entropy)


def _shifted(
    dot: torch.Tensor, total: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Σ (z - new)·exp(z - new) from the sums about an older maximum, `shift` = old - new."""
    # Before the first entry the old maximum is -inf and both sums are 0.
    return scale * (dot + total * shift.masked_fill(shift == -torch.inf, 0.0))
