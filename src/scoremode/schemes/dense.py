"""Dense weights: stored as they are."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.activations.quantizer import Quantizer
from scoremode.schemes.base import Scratch

__all__ = ["Dense"]


@dataclass(frozen=True)
class Dense:
    """A float tensor; `name` is its last name component (`weight`, `bias`, …)."""

    shape: tuple[int, ...]
    dtype: str
    name: str = "weight"

    @property
    def label(self) -> str:
        return self.dtype.lower()

    @property
    def inputs(self) -> Quantizer | None:
        return None

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.name,)

    def is_stored_as(self, dtype: torch.dtype) -> bool:
        return _TORCH[self.dtype] == dtype

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        out.copy_(tensors[self.name])


_TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
