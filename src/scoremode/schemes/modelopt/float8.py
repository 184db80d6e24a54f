"""ModelOpt's FP8: one float8 an element, with a float32 scale a tensor, a row or a block.

The effective weight is code times scale, the scale rounded to the dtype that is computed in before the
product is: so ModelOpt dequantizes, and Marlin's scales are of that dtype, too. Where inputs are
quantized as well the product's epilogue has the scale as it is stored.
Source: ModelOpt 0.47, `FP8QTensor.dequantize`, `from_quantized_weight`.
"""

from collections.abc import Mapping

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.naive_quantized import FloatQuantized

__all__ = ["Float8"]


class Float8(FloatQuantized):
    """Weights of one float8 an element, rounded in the dtype that they are decoded into."""

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        scale = tensors["weight_scale"].to(out.dtype)
        super().decode({**tensors, "weight_scale": scale}, out, scratch)
