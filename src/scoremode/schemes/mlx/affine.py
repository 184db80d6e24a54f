"""Integers as MLX stores them: `weight`, `scales` and `biases`, q · s + b.

Codes of 2 to 8 bits lie in words of 32 from the lowest bits on and run on over words. The product
and the sum are each rounded in the dtype of the scales.
Source: mlx 0.32, `dequantize` on a CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import Elements, row_blocks, unpack

__all__ = ["Affine"]


@dataclass(frozen=True)
class Affine:
    """A weight of `bits` in groups of `size` columns."""

    shape: tuple[int, int]
    bits: int
    size: int

    @property
    def label(self) -> str:
        return f"MLX {self.bits}-bit g{self.size}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "scales", "biases")

    @property
    def inputs(self) -> None:
        return None

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        packed = tensors["weight"].contiguous().view(torch.int32)
        scale, bias = tensors["scales"].contiguous(), tensors["biases"].contiguous()

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.mlx import kernels

            kernels.decode(out, packed, scale, bias, self.bits, self.size)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        elements, half = Elements(self.bits), 1 << (self.bits - 1)
        for rows in row_blocks(self.shape, out.device):
            q = unpack(packed[rows], elements, self.shape[1], scale.dtype, scratch).add_(half)
            groups = q.unflatten(1, (-1, self.size))
            groups.mul_(scale[rows].unsqueeze(2)).add_(bias[rows].unsqueeze(2))
            out[rows].copy_(q)
