"""Small floats as MLX stores them: `weight` and `scales` of a byte, without biases.

mxfp4 and mxfp8 are e2m1 and e4m3 under a power of two for 32 columns, nvfp4 is e2m1 under an e4m3
for 16; all of these products are exact in bfloat16 but for the smallest.
Source: mlx 0.32, `dequantize` on a CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import E4M3, FLOATS, Elements, look_up_scales
from scoremode.schemes.packed import Packed

__all__ = ["MlxFloats"]


@dataclass(frozen=True)
class MlxFloats(Packed):
    """A weight of one of the modes `mxfp4`, `mxfp8` and `nvfp4`."""

    mode: str

    @property
    def label(self) -> str:
        return f"MLX {self.mode.upper()}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "scales")

    @property
    def scale_name(self) -> str:
        return "scales"

    @property
    def elements(self) -> Elements:
        return FLOATS[8 if self.mode == "mxfp8" else 4]

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        if self.mode != "nvfp4":
            super().decode(tensors, out, scratch)
            return
        scale = tensors["scales"].view(torch.float8_e4m3fn)
        if self.by_kernel("decode", tensors, out, scale=scale, rounding=torch.bfloat16):
            return
        scales = look_up_scales(scale, E4M3.to(out.device, torch.bfloat16), scratch)
        for rows, q in self.values(tensors, torch.bfloat16, scratch):
            self.scaling.multiply(q, scales, rows, out)
