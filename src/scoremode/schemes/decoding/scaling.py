"""Scales spread over a weight: one a tensor, a row, a group of a row's columns, or a block.

The effective weight of an integer or float8 format is `(q - zero_point) · scale`, each step rounded in
the scale's own dtype, as compressed-tensors decompresses it and as weight-only kernels multiply it:
bf16(q·s), not the exact product. The difference of two such codes is at most 255 from zero and exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scoremode.schemes.decoding.unpack import Scratch


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
        self,
        q: torch.Tensor,
        values: torch.Tensor,
        rows: slice,
        g_idx: torch.Tensor | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """`q -= values` in place: `q` are the given rows, `values` as `arranged` returns them."""
        self._apply(torch.sub, q, values, rows, g_idx, q, scratch or Scratch())

    def multiply(
        self,
        q: torch.Tensor,
        values: torch.Tensor,
        rows: slice,
        out: torch.Tensor,
        g_idx: torch.Tensor | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """`out[rows] = q · values`, rounded in the dtype of `q` and `values`, whatever that of `out`.

        `q` may be overwritten.
        """
        scratch = scratch or Scratch()
        # In one go where nothing has to be converted.
        into = out[rows] if out.dtype == q.dtype else q
        self._apply(torch.mul, q, values, rows, g_idx, into, scratch)
        if into is q:
            # Between these two torch takes one number at a time. Float32 has both, in half the time.
            if {q.dtype, out.dtype} == {torch.float16, torch.bfloat16}:
                q = scratch.get("exact", tuple(q.shape), torch.float32, q.device).copy_(q)
            out[rows].copy_(q)

    def _apply(
        self,
        op: Callable[..., torch.Tensor],
        q: torch.Tensor,
        values: torch.Tensor,
        rows: slice,
        g_idx: torch.Tensor | None,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        values = values if self.strategy == "tensor" else values[rows]
        columns, size = self.shape[1], self.columns_of_one
        if size is None:
            op(q, values, out=out)
        elif g_idx is not None:
            # Out of one line of values, which takes a third of the time that columns of them do.
            shape, line = tuple(q.shape), values.reshape(-1)
            begins = torch.arange(0, len(line), values.shape[1], dtype=g_idx.dtype, device=q.device)
            places = scratch.get("places", shape, g_idx.dtype, q.device)
            torch.add(begins[:, None], g_idx, out=places)
            spread = scratch.get("spread", shape, values.dtype, q.device)
            torch.index_select(line, 0, places.view(-1), out=spread.view(-1))
            op(q, spread, out=out)
        else:
            whole = columns - columns % size
            groups = [t[:, :whole].unflatten(1, (-1, size)) for t in (q, out)]
            op(groups[0], values[:, : whole // size].unsqueeze(2), out=groups[1])
            if whole < columns:
                op(q[:, whole:], values[:, -1:], out=out[:, whole:])
