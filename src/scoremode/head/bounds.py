"""Bounds on what lies between a base and a model of which only some log-probabilities are known.

With p the base's distribution, known whole, and q the model's, known on a set S of ids: all ids outside
S are one event, of probability p' = 1 − Σ_S p and q' = 1 − Σ_S q. No function of the outcome, such as
which event it is in, tells two distributions better apart than the outcome itself does (the
data-processing inequality; Csiszár, "Information-type measures of difference of probability
distributions", Studia Scientiarum Mathematicarum Hungarica 2, 1967). So

    KL(p‖q) ≥ Σ_S p ln(p/q) + p' ln(p'/q')        TV ≥ ½ (Σ_S |p − q| + |p' − q'|)

and, since outside S p and q may have nothing in common, TV ≤ ½ (Σ_S |p − q| + p' + q'). A KL
divergence has no bound from above: outside S q may be 0 where p isn't.

A model's log-probabilities are float32, each within `ROUNDED` nats of what it is, and so q' may be
wrong by about 1e-6: it is taken as `SLACK` larger in the KL divergence, and Σ |p − q| as much
smaller or larger, so that rounding loosens a bound and doesn't break it.
"""

from dataclasses import dataclass

import torch
from numpy.typing import NDArray

from scoremode.head.project import Logits, tile_of, tiles
from scoremode.head.rows import HeadScores, RowSums, has_kernels

# As in `results.scores`, for probabilities that should add up to 1.
SLACK = 1e-5
# Half a unit in the last place of a number below 32, twice.
ROUNDED = 2e-6


@dataclass(frozen=True, eq=False)
class PairBounds:
    """Per row: the base's own scores, and the bounds, float64 [N] each, on its device."""

    base: HeadScores
    kld_least: torch.Tensor
    tv_least: torch.Tensor
    tv_most: torch.Tensor

    def columns(self) -> dict[str, NDArray]:
        """The columns of `results.scores.Bounds`, by name: numpy [N] each."""
        return {
            **{f"base_{name}": column for name, column in self.base.columns().items()},
            "kld_least": self.kld_least.cpu().numpy(),
            "tv_least": self.tv_least.cpu().numpy(),
            "tv_most": self.tv_most.cpu().numpy(),
        }


def bound_rows(
    target: torch.Tensor,
    vocabulary: int,
    base: Logits,
    ids: torch.Tensor,
    logprobs: torch.Tensor,
    *,
    tile: tuple[int, int] | None = None,
) -> PairBounds:
    """The bounds of each row from what is known of the model there.

    - `target` int64 [N]; `base`: the base's logits of the same rows, over `vocabulary` entries.
    - `ids` int64 [N, K]: each row's set, no id twice, -1 for none; `logprobs` float64 [N, K]: the
      model's there, in nats. An id outside the base's vocabulary has the base's probability 0.

    A row whose known probabilities add up to more than 1 + `SLACK` is no distribution's: its bounds are
    NaN.
    """
    tile = tile or tile_of(target.device)
    sums, logits = RowSums(len(target), target.device), torch.full_like(logprobs, -torch.inf)
    take = sums.absorb if has_kernels(target.device) else sums.consume
    for begin, blocks in tiles(range(len(target)), vocabulary, tile, base):
        for block in blocks:
            z, own = base(block), ids[block]
            here = (own >= begin) & (own < begin + z.shape[1])
            # Before they are destroyed.
            found = z.gather(1, (own - begin).clamp(0, z.shape[1] - 1))
            logits[block] = torch.where(here, found.double(), logits[block])
            take(block, z, target[block], begin)
    log_p = logits - (sums.max.double() + sums.sum.log()).unsqueeze(1)
    return _bounds(sums.finish(), log_p, logprobs.masked_fill(ids < 0, -torch.inf), ids >= 0)


def _bounds(
    base: HeadScores, log_p: torch.Tensor, log_q: torch.Tensor, known: torch.Tensor
) -> PairBounds:
    p, q = log_p.exp(), log_q.exp()
    rest_p = (1 - p.sum(1)).clamp_min(0.0)
    rest_q = 1 - q.sum(1)
    # 0 · ln(0/q) is 0.
    kld = torch.where(known & (p > 0), p * (log_p - log_q), 0.0).sum(1)
    slack_q = rest_q.clamp_min(0.0) + SLACK
    kld += torch.where(rest_p > 0, rest_p * (rest_p / slack_q).log(), 0.0)
    apart = (p - q).abs().sum(1)
    least = (apart + (rest_p - rest_q).abs() - SLACK).clamp_min(0.0) / 2
    most = (apart + rest_p + rest_q.clamp_min(0.0) + SLACK) / 2
    wrong = rest_q < -SLACK
    # Neither can be below 0, nor a total variation above 1.
    return PairBounds(
        base,
        (kld - ROUNDED).clamp_min(0.0).masked_fill(wrong, torch.nan),
        least.clamp_max(1.0).masked_fill(wrong, torch.nan),
        most.clamp_max(1.0).masked_fill(wrong, torch.nan),
    )
