"""Weights of one float8 an element, with a scale a block, a row or a tensor; experts of e2m1.

The scale multiplies, whatever its name: the effective weight is code times scale in float32, rounded
once more to the dtype that is computed in. Scales are floats, or powers of two in a byte each (ue8m0).
The last blocks of rows and of columns may be short, as in DeepSeek's kernels.
Source: transformers 5.23, `Fp8Dequantize`, for whole blocks and e2m1;
compressed-tensors' `FP8BlockDequantizer` for short ones.
"""

from dataclasses import dataclass

import torch

from scoremode.schemes.compressed_tensors.mx import Mx
from scoremode.schemes.compressed_tensors.naive_quantized import FloatQuantized

__all__ = ["BlockFloat8", "Fp4"]


@dataclass(frozen=True)
class BlockFloat8(FloatQuantized):
    """Float8 whose products with scales are rounded in float32, whatever the dtype of the scales.

    `stored_scale`: the suffix of the scales.
    """

    stored_scale: str = "weight_scale_inv"

    @property
    def label(self) -> str:
        of_two = " ue8m0" if self.inputs and self.inputs.format.powers_of_two else ""
        static = " static" if self.inputs and self.inputs.format.dynamic is False else ""
        return f"FP8 {self.scaling.label}{of_two}{static}"

    @property
    def scale_name(self) -> str:
        return self.stored_scale

    @property
    def nan_scale(self) -> bool:
        # As torch's float8_e8m0fnu, so that no score of one passes.
        return True

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


@dataclass(frozen=True)
class Fp4(Mx):
    """Pairs of e2m1 in a byte, the first in the low nibble, in groups of 32 under powers of two: exact
    in bfloat16, as MXFP4 is. `stored_scale`: the suffix of the scales."""

    stored_scale: str = "weight_scale_inv"

    @property
    def label(self) -> str:
        return "FP4 g32 ue8m0"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", self.stored_scale)

    @property
    def scale_name(self) -> str:
        return self.stored_scale

    @property
    def nan_scale(self) -> bool:
        return True
