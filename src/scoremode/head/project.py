"""The head: from hidden states to log-probabilities, tile by tile, with no logits kept.

Same result as

    z = softcap(scale * (hidden.float() @ weight.float().T + bias))[:, :vocabulary]
    logprob = z.log_softmax(-1).gather(-1, target)

but a tile of `z`, a few hundred rows by a few thousand entries, is all that ever exists. Tiles are
taken in vocabulary order and combined in that order (running maximum in float32, running sum in
float64), so the result is the same on every run and hardly moves with the tile's size. Products of
bf16 inputs are summed in float32: on a CPU with bf16 instructions by lending them to a float32
matmul, which is exact for such inputs; on CUDA by asking the matmul for a float32 result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

__all__ = ["Head", "HeadScores", "score_rows"]

_CPU_TILE = (512, 4096)  # rows x entries: 8 MiB of float32 logits, well inside a shared cache
_CUDA_TILE = (4096, 16384)


@dataclass(frozen=True, eq=False)
class Head:
    """The projection from a final hidden state to logits.

    - `weight` float [V, D]: as stored or decoded; only `weight[:vocabulary]` is used.
    - `bias` float [V] or None.
    - `scale`: factor on the product; `softcap`: `c · tanh(z / c)` after it.
    - `vocabulary`: the softmax runs over the first so many entries.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: float
    softcap: float | None
    vocabulary: int

    def logits(self, product: torch.Tensor, begin: int) -> torch.Tensor:
        """`product` [N, tile] of entries `begin …`, made into logits in place."""
        if self.bias is not None:
            product.add_(self.bias[begin : begin + product.shape[1]].float())
        if self.scale != 1.0:
            product.mul_(self.scale)
        if self.softcap is not None:
            product.div_(self.softcap).tanh_().mul_(self.softcap)
        return product


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Per row: `logprob` and `top1_logprob` float64 [N], `top1` int64 [N], on the CPU."""

    logprob: torch.Tensor
    top1: torch.Tensor
    top1_logprob: torch.Tensor


def score_rows(
    head: Head,
    hidden: torch.Tensor,
    target: torch.Tensor,
    *,
    tile: tuple[int, int] | None = None,
    lend_bf16: bool = False,
) -> HeadScores:
    """Log-probability of `target` int64 [N] after `hidden` float [N, D].

    - `tile`: rows × vocabulary entries of logits that exist at a time.
    - `lend_bf16`: let a CPU's float32 matmul use bf16 instructions; exact only for bf16 inputs.

    A NaN or +inf logit makes its row's log-probability non-finite, and so does a -inf one of the
    target; -inf of another entry is a probability of zero. Nothing is clamped.
    """
    rows, entries = tile or (_CUDA_TILE if hidden.is_cuda else _CPU_TILE)
    state = _State(len(hidden), hidden.device)
    project = _Projection(hidden, rows, entries, lend_bf16)
    for begin in range(0, head.vocabulary, entries):
        end = min(begin + entries, head.vocabulary)
        project.load(head.weight[begin:end])
        for low in range(0, len(hidden), rows):
            block = slice(low, min(low + rows, len(hidden)))
            z = head.logits(project(block), begin)
            state.absorb(block, z, target[block] - begin, begin)
    return state.finish()


class _State:
    """Running maximum, its entry, sum of exponentials, and the target's logit, a row each."""

    def __init__(self, n: int, device: torch.device):
        self.max = torch.full((n,), -torch.inf, dtype=torch.float32, device=device)
        self.sum = torch.zeros(n, dtype=torch.float64, device=device)
        self.top1 = torch.zeros(n, dtype=torch.int64, device=device)
        self.target = torch.full((n,), torch.nan, dtype=torch.float32, device=device)

    def absorb(self, block: slice, z: torch.Tensor, target: torch.Tensor, begin: int) -> None:
        """Takes in logits `z` [rows, tile] and destroys them."""
        here = ((target >= 0) & (target < z.shape[1])).nonzero().squeeze(1)
        self.target[block][here] = z[here, target[here]]
        peak = z.amax(1)
        old = self.max[block]
        # The argmax is wanted only where this tile beats all before it, which soon gets rare;
        # a strict comparison keeps the first of equal entries.
        better = (peak > old).nonzero().squeeze(1)
        self.top1[block][better] = z[better].argmax(1) + begin
        new = torch.maximum(old, peak)
        tile_sum = z.sub_(new.unsqueeze(1)).exp_().sum(1)
        self.sum[block] = self.sum[block] * (old.double() - new.double()).exp() + tile_sum
        self.max[block] = new

    def finish(self) -> HeadScores:
        # The largest entry's own logit is the maximum, so its log-probability is -log(sum), and a
        # target that is that entry gets exactly the same number.
        top1_logprob = -self.sum.log()
        logprob = (self.target.double() - self.max.double()) + top1_logprob
        return HeadScores(logprob.cpu(), self.top1.cpu(), top1_logprob.cpu())


class _Projection:
    """`hidden @ weight.T` in float32, a block of rows by a tile of entries, in reused memory."""

    def __init__(self, hidden: torch.Tensor, rows: int, entries: int, lend_bf16: bool):
        self.hidden = hidden
        self.native = hidden.is_cuda and hidden.dtype != torch.float32
        self.lend_bf16 = lend_bf16
        width = hidden.shape[1]
        self.weight = hidden.new_empty(
            (entries, width), dtype=None if self.native else torch.float32
        )
        self.rows = hidden.new_empty((rows, width), dtype=torch.float32)
        self.product = hidden.new_empty((rows, entries), dtype=torch.float32)
        self.tile = self.weight

    def load(self, weight: torch.Tensor) -> None:
        self.tile = self.weight[: len(weight)]
        # Rounded to the compute dtype first, as the model's own weight would be.
        self.tile.copy_(weight.to(self.hidden.dtype))

    def __call__(self, block: slice) -> torch.Tensor:
        hidden = self.hidden[block]
        out = self.product.view(-1)[: len(hidden) * len(self.tile)].view(len(hidden), -1)
        if self.native:
            return torch.mm(hidden, self.tile.T, out_dtype=torch.float32, out=out)
        if hidden.dtype != torch.float32:
            hidden = self.rows[: len(hidden)].copy_(hidden)
        with _bf16_matmul(self.lend_bf16):
            return torch.mm(hidden, self.tile.T, out=out)


@contextmanager
def _bf16_matmul(wanted: bool) -> Iterator[None]:
    """Lets oneDNN compute float32 matmuls with bf16 inputs inside the block, and only there.

    The setting is global to the process, and left on it would round every float32 matmul.
    """
    if not wanted:
        yield
        return
    backend = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = backend.fp32_precision
    backend.fp32_precision = "bf16"
    try:
        yield
    finally:
        backend.fp32_precision = before
