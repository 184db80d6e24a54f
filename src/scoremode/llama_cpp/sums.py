"""llama.cpp's own KLD from a base that its file of log-probabilities stands for, in the same pass.

With `lp` what the file says of an entry, p = exp lp, z the model's logit and L = log Σ exp z,

    KLD = Σ p·(lp - z + L) = A + L·P        A = Σ p·(lp - z)        P = Σ p

over the entries with lp above `KLD_CUT`. What is deeper counts nothing, and the probabilities are taken
as they are, which add up to nearly 1: this is no divergence and may be a little below 0. All is float64
but L, whose sum of exponentials is `RowSums`'. llama.cpp takes p, L and every term in float32: its
rounding of `lp - z + L` is up to half a last place of a number of the logits' size, 1e-6 for logits of
16 to 32 in single tokens; in the mean it averages out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from scoremode.head.divergence import PairScores

__all__ = ["KLD_CUT", "LlamaCppSums"]

KLD_CUT = -16.0
# Float64 entries at a time: 32 MiB.
_BLOCK = 1 << 22


class LlamaCppSums:
    """The running state of `n` rows of a file's log-probabilities and of a model's logits: the
    `ExtraSums` of a `LlamaCppReference`."""

    columns: ClassVar[tuple[str, ...]] = ("kld_llama_cpp",)

    def __init__(self, n: int, device: torch.device):
        # A and P, float64 [n] each.
        self.cross, self.mass = (
            torch.zeros(n, dtype=torch.float64, device=device) for _ in range(2)
        )

    def consume(self, rows: slice, base: torch.Tensor, model: torch.Tensor) -> None:
        """Takes in float32 [R, E] each, log-probabilities and logits of the same entries, and leaves
        them as they are."""
        step = max(1, _BLOCK // max(1, base.shape[1]))
        for low in range(0, len(base), step):
            lp, z = (x[low : low + step].double() for x in (base, model))
            here = slice(rows.start + low, rows.start + low + len(lp))
            is_cut = lp <= KLD_CUT
            p = lp.exp().masked_fill_(is_cut, 0.0)
            self.mass[here] += p.sum(1)
            # A cut entry counts nothing even where the model has no probability for it.
            self.cross[here] += lp.sub_(z).mul_(p).masked_fill_(is_cut, 0.0).sum(1)

    def merge(self, later: "LlamaCppSums") -> None:
        """Takes in the sums of the same rows over entries that come after all of these."""
        self.cross = self.cross + later.cross
        self.mass = self.mass + later.mass

    def pack(self) -> torch.Tensor:
        """float64 [N, 2]: the whole state, to be sent to other ranks."""
        return torch.stack([self.cross, self.mass], 1)

    @classmethod
    def merged(cls, packed: Sequence[torch.Tensor]) -> "LlamaCppSums":
        """The state of all ranks from each one's `pack`, in the order of their entries."""
        result = cls(len(packed[0]), packed[0].device)
        for columns in packed:
            part = cls(0, columns.device)
            part.cross, part.mass = columns.unbind(1)
            result.merge(part)
        return result

    def finish(self, pair: PairScores) -> PairScores:
        """`pair` of the same rows with `kld_llama_cpp`, and with the base's own scores as the file has
        them: float32 values, not renormalized. Divergences stay those of the renormalized base."""

        def stored(logprob: torch.Tensor) -> torch.Tensor:
            return (logprob + pair.log_sum_base).float().double()

        base = replace(
            pair.base,
            logprob=stored(pair.base.logprob),
            top1_logprob=stored(pair.base.top1_logprob),
        )
        kld = self.cross + pair.log_sum_model * self.mass
        return replace(pair, base=base, extra={"kld_llama_cpp": kld})
