"""KL divergence of two models' logits, gathered in the same pass that scores both.

With p the base's distribution, q the model's, and Δ = z_base - z_model of one row,

    KL(p‖q) = E_p[Δ] + L        KL(q‖p) = -E_q[Δ] - L        L = log1p(E_p[expm1(-Δ)])

where L is the difference of the two normalizers, log Σ exp z_model - log Σ exp z_base. Subtracting the
normalizers themselves would cancel: a divergence is of second order in Δ, and they are of the size of
the logits. In this form equal logits give exactly 0, and small differences keep their digits.

A softmax does not see an offset common to all logits, but Δ does, so a pivot (the mean of Δ over the
row's first tile) is taken off first. Where p and q have so little in common that E_p[expm1(-Δ)] leaves
±1/2, there is nothing left to cancel, and L is taken from the normalizers after all.

The total variation, TV = ½ Σ |p - q|, needs both normalizers, which are known when all entries have
been taken in. So it is summed in a second step over the same tiles (`PairSums.vary`).

Pieces are float32, sums over pieces float64, their order fixed, as in `rows.py`. On CUDA one Triton
launch a tile takes both models' logits (`pair_kernels.py`), and the pivot is the mean of its first
entries only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, Protocol, Self

import torch
from numpy.typing import NDArray

from scoremode.head.rows import HeadScores, RowSums, has_kernels, kernels

# float32 entries of both models that one step of `vary` takes: 1 MiB.
_VARIED = 1 << 17


@dataclass(frozen=True, eq=False)
class PairScores:
    """Per row, on the device that computed them: each model's own scores and what lies between them.

    - `kld` float64 [N]: KL(base‖model) in nats; `kld_reverse` float64 [N]: KL(model‖base).
    - `tv` float64 [N]: total variation, ½ Σ |p - q|; None where `PairSums.vary` was not called.
    - `log_sum_base`, `log_sum_model` float64 [N]: log Σ exp z of each.
    - `extra` float64 [N] each, by name: further columns of a Comparison, made by ExtraSums.
    """

    model: HeadScores
    base: HeadScores
    kld: torch.Tensor
    kld_reverse: torch.Tensor
    log_sum_base: torch.Tensor
    log_sum_model: torch.Tensor
    tv: torch.Tensor | None = None
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def columns(self) -> dict[str, NDArray]:
        """The columns of Scores and of a Comparison that these are, by name: numpy [N] each."""
        return {
            **self.model.columns(),
            **{f"base_{name}": column for name, column in self.base.columns().items()},
            "kld": self.kld.cpu().numpy(),
            "kld_reverse": self.kld_reverse.cpu().numpy(),
            **({} if self.tv is None else {"tv": self.tv.cpu().numpy()}),
            **{name: column.cpu().numpy() for name, column in self.extra.items()},
        }


class ExtraSums(Protocol):
    """The running state of `n` rows of sums that a reference brings beside those of `PairSums`.

    - `columns`: names of the columns of a Comparison that it adds.
    """

    columns: ClassVar[tuple[str, ...]]

    def __init__(self, n: int, device: torch.device): ...

    def consume(self, rows: slice, base: torch.Tensor, model: torch.Tensor) -> None:
        """Takes in float32 logits [R, E] of the same entries, and leaves them as they are."""
        ...

    def pack(self) -> torch.Tensor:
        """float64 [N, C]: the whole state, to be sent to other ranks."""
        ...

    @classmethod
    def merged(cls, packed: Sequence[torch.Tensor]) -> Self:
        """The state of all ranks from each one's `pack`, in the order of their entries."""
        ...

    def finish(self, pair: PairScores) -> PairScores:
        """`pair` of the same rows, whose `extra` then has `columns`."""
        ...


class PairSums:
    """The running state of `n` rows of two models' logits over one vocabulary.

    What is not finite is treated as `RowSums` says. A probability of zero (a logit of -inf) is one that
    adds nothing where it is a weight, and an infinite divergence where the other model's is above zero.
    """

    def __init__(self, n: int, device: torch.device, *, entropy: bool = False):
        self.base = RowSums(n, device)
        self.model = RowSums(n, device, entropy=entropy)
        # Float64 [n] each. The first and last are about `base.max`, the middle one about `model.max`.
        self.pivot, self.base_delta, self.model_delta, self.growth = (
            torch.zeros(n, dtype=torch.float64, device=device) for _ in range(4)
        )
        # Float64 [n], from the first `vary` on.
        self.tv: torch.Tensor | None = None
        self._begun: set[int] = set()
        self._scratch: list[torch.Tensor] = []

    def consume(
        self,
        rows: slice,
        base: torch.Tensor,
        model: torch.Tensor,
        target: torch.Tensor,
        begin: int,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Takes in float32 logits [R, E] of the entries `begin … begin + E`.

        - `target` int64 [R]: ids over the whole vocabulary.
        - `rows`: the same slices must come again for every part of the vocabulary.

        Returns None where both are left as they are (on CUDA). In plain torch each becomes
        exp(z - maximum) in its memory, and the maxima of base and model, [R] each, are returned.
        """
        is_first = rows.start not in self._begun
        self._begun.add(rows.start)
        if has_kernels(base.device):
            between = (self.pivot, self.base_delta, self.model_delta, self.growth)
            with kernels():
                from scoremode.head.pair_kernels import absorb_pairs

                absorb_pairs(
                    base, model, target, begin, is_first,
                    self.base.of(rows), self.model.of(rows), [part[rows] for part in between],
                )  # fmt: skip
            return None
        # The sign that expm1 wants; both sums of its products are turned at the end.
        minus_delta, growth, product = self._tiles(base)
        torch.sub(model, base, out=minus_delta)
        if is_first:
            self.pivot[rows] = -_mean(minus_delta)
        minus_delta.add_(self.pivot[rows].float().unsqueeze(1))
        old_base, old_model = self.base.max[rows].clone(), self.model.max[rows].clone()
        p = self.base.consume(rows, base, target, begin)
        q = self.model.consume(rows, model, target, begin)
        by_base = _scale(old_base, self.base.max[rows])
        by_model = _scale(old_model, self.model.max[rows])
        # Overflows where the model is much likelier than the base: finish() then goes the other way.
        torch.expm1(minus_delta, out=growth)
        tile_growth = growth.mul_(p).sum(1)
        tile_base, tile_model = (-torch.mul(x, minus_delta, out=product).sum(1) for x in (p, q))
        if not (tile_base.isfinite().all() and tile_model.isfinite().all()):
            # 0 · ∞ is an entry without probability. A NaN logit is in its model's own sums already.
            tile_base, tile_model = (
                -torch.mul(x, minus_delta, out=product).masked_fill_(product.isnan(), 0.0).sum(1)
                for x in (p, q)
            )
            # What neither model has any probability for doesn't grow either.
            tile_growth = growth.masked_fill_(minus_delta.isnan(), 0.0).sum(1)
        self.base_delta[rows] = self.base_delta[rows] * by_base + tile_base
        self.model_delta[rows] = self.model_delta[rows] * by_model + tile_model
        self.growth[rows] = self.growth[rows] * by_base + tile_growth
        # Without entropy they are in the memory of the logits.
        if p.data_ptr() != base.data_ptr():
            base.copy_(p)
        if q.data_ptr() != model.data_ptr():
            model.copy_(q)
        return self.base.max[rows].clone(), self.model.max[rows].clone()

    def vary(
        self,
        rows: slice,
        base: torch.Tensor,
        model: torch.Tensor,
        about: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Adds a tile, float32 [R, E] each, to the total variation of its rows, whose entries have all
        been taken in. Plain torch destroys both.

        - `about`: the maxima that `consume` returned, where both are what it made of the logits; None
          where they are logits.
        """
        if self.tv is None:
            self.tv = torch.zeros_like(self.pivot)
        if has_kernels(base.device):
            with kernels():
                from scoremode.head.pair_kernels import add_apart

                sums = self.base.max, self.base.sum, self.model.max, self.model.sum
                # Of merged parts they are columns of what was sent.
                add_apart(base, model, [x[rows].contiguous() for x in sums], self.tv[rows])
            return
        scales = []
        for i, (own, z) in enumerate(((self.base, base), (self.model, model))):
            peak = own.max[rows]
            old = peak if about is None else about[i]
            if about is None:
                z.sub_(peak.masked_fill(peak == -torch.inf, 0.0).unsqueeze(1)).exp_()
            scales.append((_scale(old, peak) / own.sum[rows]).float())
        p, q = scales
        # So many rows that both tiles stay in a core's cache from one step to the next.
        step = max(1, _VARIED // max(1, base.shape[1]))
        for low in range(0, len(base), step):
            here = slice(low, low + step)
            # Both are rounded before they are subtracted, so that equal ones leave exactly 0.
            other = model[here].mul_(q[here].unsqueeze(1))
            apart = base[here].mul_(p[here].unsqueeze(1)).sub_(other)
            at = slice(rows.start + low, rows.start + low + len(apart))
            self.tv[at] += apart.abs_().sum(1).double() / 2

    def finish(self) -> PairScores:
        base, model = self.base.finish(), self.model.finish()
        log_sum_base = self.base.max.double() + self.base.sum.log()
        log_sum_model = self.model.max.double() + self.model.sum.log()
        growth = self.growth / self.base.sum
        apart = (log_sum_model + self.pivot) - log_sum_base
        between = torch.where((growth.abs() < 0.5) & apart.isfinite(), growth.log1p(), apart)
        return PairScores(
            model,
            base,
            self.base_delta / self.base.sum + between,
            -self.model_delta / self.model.sum - between,
            log_sum_base,
            log_sum_model,
            self.tv,
        )

    def merge(self, later: "PairSums") -> Self:
        """Itself, with the sums of the same rows over entries that come after all of these; `later` is
        not to be used again."""
        # The later part's Δ is about another pivot: Δ + (its pivot - ours) is about ours. A part
        # without any entry has no pivot of its own.
        pivot = torch.where(self.base.sum == 0, later.pivot, self.pivot)
        for part in (self, later):
            moved = torch.where(part.base.sum == 0, 0.0, part.pivot - pivot)
            part.growth = (-moved).exp() * part.growth + part.base.sum * (-moved).expm1()
            part.base_delta = part.base_delta + moved * part.base.sum
            part.model_delta = part.model_delta + moved * part.model.sum
            part.pivot = pivot
        ours, theirs = _merge(self.base, later.base)
        our_model, their_model = _merge(self.model, later.model)
        self.base_delta = self.base_delta * ours + later.base_delta * theirs
        self.growth = self.growth * ours + later.growth * theirs
        self.model_delta = self.model_delta * our_model + later.model_delta * their_model
        return self

    def pack(self) -> torch.Tensor:
        """float64 [N, C]: the whole state, to be sent to other ranks."""
        own = torch.stack([self.pivot, self.base_delta, self.model_delta, self.growth], 1)
        return torch.cat([own, self.base.pack(), self.model.pack()], 1)

    @classmethod
    def unpacked(cls, columns: torch.Tensor) -> Self:
        """The inverse of `pack`."""
        part = cls(0, columns.device)
        part.pivot, part.base_delta, part.model_delta, part.growth = columns[:, :4].unbind(1)
        part.base, part.model = map(RowSums.unpacked, (columns[:, 4:8], columns[:, 8:]))
        return part

    @classmethod
    def merged(cls, packed: Sequence[torch.Tensor]) -> Self:
        """The state of all ranks from each one's `pack`, in the order of their entries."""
        return reduce(cls.merge, map(cls.unpacked, packed))

    def _tiles(self, like: torch.Tensor) -> list[torch.Tensor]:
        """Three tiles of the shape of `like`, in memory that is kept."""
        size = like.numel()
        if not self._scratch or len(self._scratch[0]) < size:
            self._scratch = [like.new_empty(size) for _ in range(3)]
        return [memory[:size].view(like.shape) for memory in self._scratch]


def _mean(delta: torch.Tensor) -> torch.Tensor:
    """float32 [R], of the finite entries."""
    mean = delta.mean(1)
    if not mean.isfinite().all():
        finite = delta.isfinite()
        total = delta.masked_fill(~finite, 0.0).sum(1)
        mean = total / finite.sum(1).clamp_min(1)
    return mean


def _merge(sums: RowSums, later: RowSums) -> list[torch.Tensor]:
    """Merges both, and returns the factors of what was about the maximum of either."""
    before = sums.max, later.max
    sums.merge(later)
    return [_scale(old, sums.max) for old in before]


def _scale(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """exp(old - new) float64, 0 where there was nothing."""
    return (old.double() - new.masked_fill(new == -torch.inf, 0.0).double()).exp()
