"""Weights of one float8 an element, with a scale a block: `weight` and `weight_scale_inv`.

The scale multiplies, whatever its name: the effective weight is code times scale in float32, rounded
once more to the dtype that is computed in. Scales are floats, or powers of two in a byte each (ue8m0).
The last blocks of rows and of columns may be short, as in DeepSeek's kernels.
Source: transformers 5.23, `Fp8Dequantize`, for whole blocks;
compressed-tensors' `FP8BlockDequantizer` for short ones.
"""

import torch

from scoremode.schemes.compressed_tensors.naive_quantized import FloatQuantized

__all__ = ["BlockFloat8"]


class BlockFloat8(FloatQuantized):
    """Float8 blocks whose products are rounded in float32, whatever the dtype of the scales."""

    @property
    def label(self) -> str:
        of_two = " ue8m0" if self.inputs and self.inputs.format.powers_of_two else ""
        return f"FP8 {self.scaling.label}{of_two}"

    @property
    def scale_name(self) -> str:
        return "weight_scale_inv"

    @property
    def nan_scale(self) -> bool:
        # As torch's float8_e8m0fnu, so that no score of one passes.
        return True

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32
