"""Weights as Quark stores them: float8 and int8 with a scale a tensor or row, integers of 4 bits under
scales of groups, e2m1 under powers of two.

The effective weight is code times scale in float32, rounded once more to the dtype that is computed
in, whatever dtype the scales have.
Source: amd-quark 0.13, `StaticScaledRealQuantizer`, `dequantize`.
"""

from dataclasses import dataclass

import torch

from scoremode.schemes.compressed_tensors.mx import Mx
from scoremode.schemes.compressed_tensors.naive_quantized import FloatQuantized, IntQuantized
from scoremode.schemes.compressed_tensors.pack_quantized import activation_label
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import Elements
from scoremode.schemes.packed import Packed

__all__ = ["QuarkFloat8", "QuarkInt4", "QuarkInt8", "QuarkMxfp4"]


class QuarkFloat8(FloatQuantized):
    """Float8 whose products are rounded in float32."""

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class QuarkInt8(IntQuantized):
    """Integers of 8 bits whose products are rounded in float32."""

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


@dataclass(frozen=True)
class QuarkInt4(Packed):
    """Integers of 4 bits, eight outputs to a word; products are rounded in float32.

    - `weight` int32 [I, O / 8]; `weight_scale` [groups, O]; `weight_zero_point` int32 [groups, O / 8],
      codes as the weight's, read only where `asymmetric`.
    - `signed`: in two's complement (`int4`), else from 0 on (`uint4`).
    - `shuffled`: a word's outputs lie 0 2 4 6 1 3 5 7 (`pack_method: reorder`), else in order.
    """

    signed: bool
    asymmetric: bool
    shuffled: bool

    @property
    def label(self) -> str:
        marks = " asym" if self.asymmetric else ""
        return f"W4{activation_label(self.inputs)} {self.scaling.label}{marks}"

    @property
    def tensors(self) -> tuple[str, ...]:
        zero_points = ("weight_zero_point",) if self.asymmetric else ()
        return ("weight", "weight_scale", *zero_points)

    @property
    def codes(self) -> Codes:
        return Codes("int", 15 if self.asymmetric else 8, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return Elements(4, signed=self.signed, order="outputs", shuffled=self.shuffled)

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class QuarkMxfp4(Mx):
    """MXFP4 with its codes in `weight`."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")
