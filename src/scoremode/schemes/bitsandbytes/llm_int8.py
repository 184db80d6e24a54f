"""Weights of 8 bits as bitsandbytes stores them for LLM.int8: `weight` int8 and `SCB`, the largest
magnitude of each row.

The effective weight is code · SCB · (1 / 127), each product rounded in float32. LLM.int8 quantizes
inputs too, a token's to int8 by its largest magnitude, but for columns that hold an outlier in any
token of a window (`schemes.activations.outliers`): these are multiplied as they are with the effective
weight's columns, in the compute dtype, and added to the rounded product of the codes.
Source: bitsandbytes 0.50, `int8_vectorwise_dequant`, `MatMul8bitLt`, `int8_mixed_scaled_mm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.lib import fallback
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import row_blocks

__all__ = ["INVERSE", "LlmInt8"]

# 1 / 127 in float32, as the library writes it.
INVERSE = 7.874015718698502e-3


@dataclass(frozen=True)
class LlmInt8:
    """A weight of int8 with a largest magnitude a row."""

    shape: tuple[int, int]
    inputs: Inputs | None

    @property
    def label(self) -> str:
        return "LLM.int8"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "SCB")

    @property
    def codes(self) -> Codes:
        return Codes("int", 128)

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        weight, largest = tensors["weight"], tensors["SCB"]

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.bitsandbytes import kernels

            kernels.decode_int8(out, weight, largest, INVERSE)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        for rows in row_blocks(self.shape, out.device):
            q = scratch.get("values", tuple(weight[rows].shape), torch.float32, out.device)
            q.copy_(weight[rows]).mul_(largest[rows].unsqueeze(1)).mul_(INVERSE)
            out[rows].copy_(q)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        out.copy_(tensors["weight"])
        return _scale(tensors)

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        weight = tensors["weight"]
        # Contiguous and aligned as the device's matmuls want it.
        fits = weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % 16 == 0
        return Quantized(weight, _scale(tensors)) if fits else None

    def columns(
        self, tensors: Mapping[str, torch.Tensor], columns: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        chosen = tensors["weight"][:, columns].float()
        return chosen.mul_(tensors["SCB"].unsqueeze(1)).mul_(INVERSE).to(dtype)


def _scale(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return tensors["SCB"].unsqueeze(1) * INVERSE
