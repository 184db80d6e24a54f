"""Quantized operands, codes with their scales, and rounding to small floats: e2m1, e2m3, e4m3, e5m2,
and powers of two a group.
"""

from dataclasses import dataclass
from typing import Literal

import torch


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
