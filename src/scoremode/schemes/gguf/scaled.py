"""Weights in blocks under one more factor, `scale`: what NVFP4 has beside its blocks.

llama.cpp multiplies the linear's output with it. The effective weight is the blocks' value times the
factor, rounded in float32. How it would scale inputs (`input_scale`) it reads, and uses nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import row_blocks
from scoremode.schemes.gguf.blocks import Blocks

__all__ = ["SCALE", "Scaled"]

SCALE = "scale"


@dataclass(frozen=True)
class Scaled:
    """A weight `of` blocks, and a float32 of one element beside it."""

    of: Blocks

    @property
    def label(self) -> str:
        return self.of.label

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*self.of.tensors, SCALE)

    @property
    def whole(self) -> tuple[str, ...]:
        """Tensors that are not rows of the weight."""
        return (SCALE,)

    @property
    def shape(self) -> tuple[int, int]:
        return self.of.shape

    @property
    def inputs(self) -> GgmlInputs | None:
        return self.of.inputs

    @property
    def codes(self) -> Codes:
        return self.of.codes

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        (kind,), factor = self.of.tensors, tensors[SCALE].view(1)
        for rows in row_blocks(self.shape, out.device):
            target = out[rows]
            values = scratch.get("scaled", tuple(target.shape), torch.float32, out.device)
            self.of.of_rows(len(target)).decode({kind: tensors[kind][rows]}, values, scratch)
            target.copy_(values.mul_(factor))

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        return self.of.factor(tensors, out, scratch) * tensors[SCALE].view(1)

    def minimum(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        minimum = self.of.minimum(tensors)
        return None if minimum is None else minimum * tensors[SCALE].view(1)

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        return None
