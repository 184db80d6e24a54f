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


@dataclass(frozen=True)
class Scaling:
    """Tells where the scales of a weight [O, I] apply.

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
        """The shape of the scales, and of zero points before they are packed."""
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
            height = min(self.block[0], self.shape[0])
            return values.repeat_interleave(height, dim=0)[: self.shape[0]]
        return values

    def subtract(
        self, q: torch.Tensor, values: torch.Tensor, rows: slice, g_idx: torch.Tensor | None = None
    ) -> None:
        """`q -= values` in place: `q` are the given rows, `values` as `arranged` returns them."""
        self._apply(torch.sub, q, values, rows, g_idx, q)

    def multiply(
        self,
        q: torch.Tensor,
        values: torch.Tensor,
        rows: slice,
        out: torch.Tensor,
        g_idx: torch.Tensor | None = None,
    ) -> None:
        """`out[rows] = q · values`, rounded in the dtype of `q` and `values`, whatever that of `out`.

        `q` may be overwritten.
        """
        # In one go where nothing has to be converted.
        into = out[rows] if out.dtype == q.dtype else q
        self._apply(torch.mul, q, values, rows, g_idx, into)
        if into is q:
            out[rows].copy_(q)

    def _apply(
        self,
        op: Callable[..., torch.Tensor],
        q: torch.Tensor,
        values: torch.Tensor,
        rows: slice,
        g_idx: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        values = values if self.strategy == "tensor" else values[rows]
        columns, size = self.shape[1], self.columns_of_one
        if size is None:
            op(q, values, out=out)
        elif g_idx is not None:
            op(q, values.index_select(1, g_idx), out=out)
        else:
            whole = columns - columns % size
            groups = [t[:, :whole].unflatten(1, (-1, size)) for t in (q, out)]
            op(groups[0], values[:, : whole // size].unsqueeze(2), out=groups[1])
            if whole < columns:
                op(q[:, whole:], values[:, -1:], out=out[:, whole:])
