"""Codes and the scales they are under, and rounding to small floats: e2m1, e2m3, e4m3, e5m2, and powers
of two a group.

Scales are one a tensor, a row, a group of a row's columns, or a block.
The effective weight of an integer or float8 format is `(q - zero_point) · scale`, each step rounded in
the scale's own dtype, as compressed-tensors decompresses it and as weight-only kernels multiply it:
bf16(q·s), not the exact product. The difference of two such codes is at most 255 from zero and exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from scoremode.schemes.decoding.unpack import Scratch


@dataclass(frozen=True)
class Codes:
    """The kind of codes that one side of a product has.

    - `type`: `int`, `float8` (e4m3), `float16`, or `float`: any other that is exact in bfloat16, a
      power of two or a short local scale included.
    - `limit`: the largest magnitude of integers, None for floats.
    - `group`: columns that share one scale, None if all of a row do.
    - `rows` that share those of their columns.
    """

    type: Literal["int", "float8", "float16", "float"]
    limit: int | None = None
    group: int | None = None
    rows: int = 1


@dataclass(frozen=True, eq=False)
class Quantized:
    """A matrix [N, I] as codes times scales, plus minimums.

    - `codes` [N, I]: of any dtype that holds them exactly.
    - `scale` float32 [N or 1, ceil(I / group)].
    - `apart`: of LLM.int8's inputs, for each window int64 the columns that are multiplied as they are:
      their codes are zero. Empty for all others.
    - `minimum` float32 [N, I / group], of a weight: what is added to each of a group's values; None
      for nearly all.
    - `sums` float32 [N, I / group], of an input of such a weight: those of each group's values, as a
      minimum is multiplied with them.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    apart: tuple[torch.Tensor, ...] = ()
    minimum: torch.Tensor | None = None
    sums: torch.Tensor | None = None

    def dense(self, group: int | None) -> torch.Tensor:
        """float32 [N, I]: each code times its scale, rounded once."""
        values = self.codes.float()
        if group is None:
            return values * self.scale
        # A config's group may be 2^30 columns, whatever the weight has.
        columns = values.shape[1]
        spread = self.scale.repeat_interleave(min(group, columns), dim=1)[:, :columns]
        return values * spread


# The largest magnitude by the element's bits.
FLOAT_MAX = {4: 6.0, 6: 7.5, 8: 448.0}
_MANTISSA = {4: 1, 6: 3, 8: 3}
# The exponent below which numbers are subnormal.
_LOWEST = {4: 0, 6: 0, 8: -6}
E5M2_MAX = 57344.0
# floor(log2(max)): where an MX scale puts the largest magnitude of a group.
_MX_OFFSET = {4: 2, 6: 2, 8: 8}


def round_float(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Clamps and rounds `x` float32 in place to e2m1, e2m3 or e4m3, half to even; returns it.

    The step between neighbours is a power of two that the exponent gives, so that all is exact but
    the rounding; a conversion to float8 and back gives the same and takes ten times as long on a CPU.
    """
    return _round(x, FLOAT_MAX[bits], _MANTISSA[bits], _LOWEST[bits])


def round_e5m2(x: torch.Tensor) -> torch.Tensor:
    """Clamps and rounds `x` float32 in place to e5m2, half to even; returns it."""
    return _round(x, E5M2_MAX, 2, -14)


def _round(x: torch.Tensor, largest: float, mantissa: int, lowest: int) -> torch.Tensor:
    x.clamp_(-largest, largest)
    step = x.view(torch.int32) & 0x7F800000
    step.clamp_min_((127 + lowest) << 23).sub_(mantissa << 23)
    step = step.view(torch.float32)
    return x.div_(step).round_().mul_(step)


def mx_exponents(largest: torch.Tensor, bits: int) -> torch.Tensor:
    """E8M0 codes int32 for groups whose largest magnitudes are `largest` float32.

    Adding half a step of the element's mantissa carries into the exponent where the largest
    magnitude would round up to the next power of two.
    """
    mantissa = 3 if bits == 6 else 1
    raised = largest.contiguous().view(torch.int32) + (1 << (23 - mantissa - 1))
    return (raised >> 23).sub_(_MX_OFFSET[bits]).clamp_(0, 254)


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
