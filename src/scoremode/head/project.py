"""The head: from hidden states to log-probabilities, tile by tile, with no logits kept.

Same result as

    z = softcap(scale * (hidden.float() @ weight.float().T + bias))[:, :vocabulary]
    logprob = z.log_softmax(-1).gather(-1, target)

but a tile of `z`, a few hundred rows by a few thousand entries, is all that ever exists. Tiles are
taken in vocabulary order and combined in that order (`rows.py`), so the result is the same on every
run and hardly moves with the tile's size. Products of bf16 inputs are summed in float32: on a CPU with
bf16 instructions by lending them to a float32 matmul, which is exact for such inputs; on CUDA by asking
the matmul for a float32 result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from scoremode.head.rows import HeadScores, RowSums

__all__ = ["Head", "bf16_matmul", "score_rows"]

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

    What is not finite is treated as `RowSums` says.
    """
    rows, entries = tile or (_CUDA_TILE if hidden.is_cuda else _CPU_TILE)
    sums = RowSums(len(hidden), hidden.device)
    # The logits are ours to destroy, which on a CPU saves a copy of them.
    take = sums.absorb if hidden.is_cuda else sums.consume
    project = _Projection(hidden, rows, entries, lend_bf16)
    for begin in range(0, head.vocabulary, entries):
        end = min(begin + entries, head.vocabulary)
        project.load(head.weight[begin:end])
        for low in range(0, len(hidden), rows):
            block = slice(low, min(low + rows, len(hidden)))
            z = head.logits(project(block), begin)
            take(block, z, target[block], begin)
    return sums.finish().cpu()


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
        with bf16_matmul(self.lend_bf16):
            return torch.mm(hidden, self.tile.T, out=out)


@contextmanager
def bf16_matmul(wanted: bool) -> Iterator[None]:
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
