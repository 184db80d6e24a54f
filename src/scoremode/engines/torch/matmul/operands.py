"""The value that every product of two quantized matrices is given."""

from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized

__all__ = ["Operands"]


@dataclass(frozen=True, eq=False)
class Operands:
    """Both sides of a product, and what its sums become.

    - `x` [N, I] and `weight` [O, I]: codes and their scales.
    - `scratch`: memory for the sums of parts.
    - `bias` [O], added to the sums under their scales; `dtype`, which the result is rounded to once.
    """

    x: Quantized
    weight: Quantized
    scratch: Scratch
    bias: torch.Tensor | None = None
    dtype: torch.dtype = torch.float32
