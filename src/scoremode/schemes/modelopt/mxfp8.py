"""ModelOpt's MXFP8: e4m3 in groups of 32 under powers of two, one byte each.

The effective weight is the product in float32, rounded to the dtype that is computed in. The power
of two of inputs is the next one above a group's largest magnitude / 448, where compressed-tensors takes
one that may be below it: nothing is cut off.
Source: ModelOpt 0.47, `MXFP8QTensor`; vLLM 0.33, `_mxfp8_e4m3_quantize_torch`.
"""

import torch

from scoremode.schemes.compressed_tensors.mx import Mx

__all__ = ["Mxfp8"]


class Mxfp8(Mx):
    """Elements of 8 bits in groups of 32, rounded in float32."""

    @property
    def label(self) -> str:
        return "MXFP8"

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32
