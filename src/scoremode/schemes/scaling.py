"""Scales spread over a weight: one a tensor, a row, a group of a row's columns, or a block.

The effective weight of an integer or float8 format is `(q - zero_point) · scale`, each step rounded in
the scale's own dtype, as compressed-tensors decompresses it and as weight-only kernels multiply it:
bf16(q·s), not the exact product. The difference of two such codes is at most 255 from zero and exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Scaling"]

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Scaling:
    """Where the scales of a weight [O, I] apply.

    - `strategy`: `tensor`, `channel`, `group` or `block`; `size`: columns of a group;
      `block`: rows and columns.
    """

    shape: tuple[int, int]
    strategy: str
    size: int | None = None
    block: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        if self.strategy == "group":
            return f"g{self.size}"
        return f"block {self.block[0]}x{self.block[1]}" if self.block else self.strategy

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Of the scales, and of zero points before they are packed."""
        rows, columns = self.shape
        if self.strategy == "tensor":
            return 1, 1
        if self.block:
            return math.ceil(rows / self.block[0]), math.ceil(columns / self.block[1])
        return rows, math.ceil(columns / self.size) if self.size else 1

    @property
    def columns_of_one(self) -> int | None:
        """Columns that share a scale, None if all of a row do."""
        return self.block[1] if self.block else self.size

    def arranged(self, values: torch.Tensor) -> torch.Tensor:
        """Stored scales or zero points as [O or 1, groups], a block's repeated for its rows."""
        values = values.reshape(self.stored_shape)
        if self.block:
            return values.repeat_interleave(self.block[0], dim=0)[: self.shape[0]]
        return values

    def apply(
        self,
        q: torch.Tensor,
        values: torch.Tensor,
        rows: slice,
        g_idx: torch.Tensor | None,
        op: Operation,
    ) -> None:
        """`op(q, values)` in place: `q` are the given rows, `values` as `arranged` returns them."""
        values = values if self.strategy == "tensor" else values[rows]
        columns, size = self.shape[1], self.columns_of_one
        if size is None:
            op(q, values)
        elif g_idx is not None:
            op(q, values.index_select(1, g_idx))
        elif columns % size == 0:
            op(q.unflatten(1, (-1, size)), values.unsqueeze(2))
        else:
            whole = columns - columns % size
            op(q[:, :whole].unflatten(1, (-1, size)), values[:, :-1].unsqueeze(2))
            op(q[:, whole:], values[:, -1:])
