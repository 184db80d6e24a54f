"""The columns that `--full` adds to a comparison: a second pass over both models' logits.

The Jensen-Shannon divergence needs each probability, so both normalizers have to be known first. Both
entropies and the top-k lists are gathered on the way. Float64 throughout: this pass is about more
numbers, not about speed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from numpy.typing import NDArray

from scoremode.head.divergence import PairScores
from scoremode.head.project import Logits, tile_of, tiles

TOP = 10


@dataclass(frozen=True, eq=False)
class FullScores:
    """Per row, on the device that computed them.

    - `jsd` float64 [N]: ½KL(p‖m) + ½KL(q‖m) with m = (p + q)/2, in nats (Lin, Divergence measures
      based on the Shannon entropy, IEEE Trans. Inf. Theory 37, 1991).
    - `base_entropy`, `model_entropy` float64 [N]: −Σ p ln p and −Σ q ln q, in nats.
    - `topk_sets` int16 [N]: bit k-1 is set where the k likeliest ids are the same set.
    - `topk_order` int8 [N]: how many of the likeliest ids are the same, in order, before the first
      that is not.

    Of equal logits the smaller id is the likelier. A vocabulary below 10 counts as its own top 10.
    """

    jsd: torch.Tensor
    base_entropy: torch.Tensor
    model_entropy: torch.Tensor
    topk_sets: torch.Tensor
    topk_order: torch.Tensor

    def columns(self) -> dict[str, NDArray]:
        """Columns by name, as a Comparison has them."""
        return {f.name: getattr(self, f.name).cpu().numpy() for f in fields(self)}


class FullSums:
    """The running state of the rows whose normalizers `scores` holds."""

    def __init__(self, scores: PairScores):
        n, device = len(scores.kld), scores.kld.device
        self._log_sums = scores.log_sum_base, scores.log_sum_model
        self.jsd = torch.zeros(n, dtype=torch.float64, device=device)
        # Of both models: Σ p ln p.
        self.plogp = torch.zeros((2, n), dtype=torch.float64, device=device)
        # Of both models, likeliest first; -1 where there is none yet.
        self.top = torch.full((2, n, TOP), -1, dtype=torch.int64, device=device)

    def consume(self, rows: slice, base: torch.Tensor, model: torch.Tensor, begin: int) -> None:
        """Takes in float logits [R, E] of the entries `begin … begin + E`."""
        pair = base, model
        p, q = (
            z.double() - sums[rows].unsqueeze(1)
            for z, sums in zip(pair, self._log_sums, strict=True)
        )
        likely, other = p.exp(), q.exp()
        self.jsd[rows] += _jensen_shannon(p, q, likely, other).sum(1)
        # An entry without probability adds nothing.
        self.plogp[0][rows] += likely.mul_(p).masked_fill_(p == -torch.inf, 0.0).sum(1)
        self.plogp[1][rows] += other.mul_(q).masked_fill_(q == -torch.inf, 0.0).sum(1)
        for side, z in enumerate(pair):
            top = torch.cat((self.top[side][rows], _keys(z, begin)), 1)
            self.top[side][rows] = top.topk(TOP, 1).values

    def pack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float64 [N, 3] and int64 [N, 20]: the whole state, to be sent to other ranks."""
        return torch.stack([self.jsd, *self.plogp], 1), torch.cat(self.top.unbind(0), 1)

    def merge_packed(self, packed: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Becomes the state of all ranks, each one's `pack` in the order of their entries."""
        self.jsd, *plogp = torch.stack([sums for sums, _ in packed]).sum(0).unbind(1)
        self.plogp = torch.stack(plogp)
        tops = [torch.stack(top.split(TOP, 1)) for _, top in packed]
        self.top = torch.cat(tops, 2).topk(TOP, 2).values

    def finish(self) -> FullScores:
        base, model = torch.where(self.top < 0, -1, 0x7FFFFFFE - (self.top & 0x7FFFFFFF))
        in_order = (base == model).long().cumprod(1).sum(1)
        sets = torch.zeros_like(in_order)
        for k in range(1, TOP + 1):
            same = (base[:, :k].sort(1).values == model[:, :k].sort(1).values).all(1)
            sets += same.long() << (k - 1)
        # Less 0 is not -0, which a sure prediction would be.
        base_entropy, model_entropy = 0.0 - self.plogp
        return FullScores(
            self.jsd,
            base_entropy,
            model_entropy,
            sets.to(torch.int16),
            in_order.to(torch.int8),
        )


def full_pairs(
    scores: PairScores,
    vocabulary: int,
    *,
    model: Logits,
    base: Logits,
    tile: tuple[int, int] | None = None,
) -> FullScores:
    """The second pass over the logits that `scores` are of, in the same tiles."""
    tile = tile or tile_of(scores.kld.device)
    sums = FullSums(scores)
    for begin, blocks in tiles(range(len(scores.kld)), vocabulary, tile, base, model):
        for block in blocks:
            sums.consume(block, base(block), model(block), begin)
    return sums.finish()


def _jensen_shannon(
    p: torch.Tensor, q: torch.Tensor, likely: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    """float64 [R, E]: each entry's term, from the log-probabilities of both and their exponentials.

    With x = q - p: ½[e^p (p - m) + e^q (q - m)] = ½[(e^q - e^p) x/2 - (e^p + e^q) log cosh(x/2)], in
    which terms of first order in x do not have to cancel.
    """
    half = (q - p) / 2
    # Above 1, the smaller exponential can be left to the rounding; below, cosh - 1 must not be lost.
    far = half.abs() + torch.log1p(torch.exp(-2 * half.abs())) - math.log(2)
    near = torch.log1p(2 * torch.sinh(half.clamp(-1, 1) / 2) ** 2)
    log_cosh = torch.where(half.abs() < 1, near, far)
    terms = ((other - likely) * half - (likely + other) * log_cosh) / 2
    # Of an entry that the one model rules out, the other's probability adds ½ ln 2 of itself. One that
    # is e^80 times less likely is ruled out too: the terms above would cancel where it is e^10000.
    alone = (likely + other) * (math.log(2) / 2)
    terms = torch.where(half.abs() > 40, alone, terms)
    return terms.masked_fill((p == -torch.inf) & (q == -torch.inf), 0.0)


def _keys(z: torch.Tensor, begin: int) -> torch.Tensor:
    """int64 [R, E]: larger for a larger float32 logit, and of equal ones for the smaller id, which its
    last 31 bits tell.

    A sort by such keys knows no ties, so its order is no library's choice.
    """
    z = z.float() + 0.0  # -0 and 0 are equal, and their bits are not
    bits = z.view(torch.int32).long()
    order = torch.where(bits < 0, 0x7FFFFFFF - (bits & 0x7FFFFFFF), bits + 0x80000000)
    ids = torch.arange(begin, begin + z.shape[1], device=z.device)
    return (order << 31) + (0x7FFFFFFE - ids)
