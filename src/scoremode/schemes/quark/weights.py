"""Weights as Quark stores them: float8 and int8 with a scale a tensor or row, e2m1 under powers of
two.

The effective weight is code times scale in float32, rounded once more to the dtype that is computed
in, whatever dtype the scales have.
Source: amd-quark 0.13, `StaticScaledRealQuantizer`, `dequantize`.
"""

import torch

from scoremode.schemes.compressed_tensors.mx import Mx
from scoremode.schemes.compressed_tensors.naive_quantized import FloatQuantized, IntQuantized

__all__ = ["QuarkFloat8", "QuarkInt8", "QuarkMxfp4"]


class QuarkFloat8(FloatQuantized):
    """Float8 whose products are rounded in float32."""

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class QuarkInt8(IntQuantized):
    """Integers of 8 bits whose products are rounded in float32."""

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class QuarkMxfp4(Mx):
    """MXFP4 with its codes in `weight`."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")
