"""Quantized operands: what their codes are, and codes with their scales."""

from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["Codes", "Quantized"]


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
