"""ModelOpt's NVFP4: e2m1 pairs in bytes under float8 scales of 16, all under one that multiplies.

The effective weight is e2m1 · (scale · global), both products in float32, rounded to the dtype that is
computed in: so ModelOpt dequantizes, and vLLM's emulation. (ModelOpt's Triton kernel has
(e2m1 · scale) · global, which rounds once less: seldom another bit of bfloat16.) compressed-tensors'
converter stores 1 / global, by which it then divides: two roundings more. A code of -0 is -0, as in
vLLM; ModelOpt's table has 0 there.
Source: ModelOpt 0.47, `NVFP4QTensor.dequantize`; vLLM 0.33, `dequantize_to_dtype`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors import nvfp4
from scoremode.schemes.decoding.unpack import E4M3, look_up_scales

__all__ = ["Nvfp4"]


@dataclass(frozen=True)
class Nvfp4(nvfp4.Nvfp4):
    """Groups of e2m1 in `weight`, under `weight_scale` and `weight_scale_2`.

    - `is_awq`, `input_factor`: of NVFP4_AWQ, whose inputs are multiplied before they are quantized.
    """

    is_awq: bool = False
    input_factor: str | None = None

    @property
    def label(self) -> str:
        return f"{super().label} AWQ" if self.is_awq else super().label

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale", "weight_scale_2")

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        stored, whole = tensors["weight_scale"], tensors["weight_scale_2"].view(1)
        if self.by_kernel("decode", tensors, out, scale=stored, whole=whole, multiplies=True):
            return
        scale = look_up_scales(stored, E4M3.to(out.device) * whole, scratch)
        for rows, q in self.values(tensors, torch.float32, scratch):
            self.scaling.multiply(q, scale, rows, out)

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return tensors["weight_scale_2"].view(1, 1)
