"""Weights as torchao stores them: integers and float8, one a byte, under scales a tensor, row or
group.

The effective weight is code times scale in float32, rounded in the dtype that the tensor says it
has.
Source: torchao 0.18, `dequantize_affine`, `_dequantize_affine_float8`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.naive_quantized import Naive
from scoremode.schemes.compressed_tensors.pack_quantized import activation_label
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import FLOATS, SIGNED_BYTES, Elements

__all__ = ["AoWeight"]


@dataclass(frozen=True)
class AoWeight(Naive):
    """Integers of `bits`, or float8 where these are None, rounded in `dtype`."""

    bits: int | None
    dtype: torch.dtype

    @property
    def label(self) -> str:
        if self.bits is not None:
            return f"W{self.bits}{activation_label(self.inputs)} {self.scaling.label}"
        if self.inputs is None:
            return f"FP8 W8A16 {self.scaling.label}"
        return f"FP8 {self.scaling.label}, inputs {self.inputs.label}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("_weight_qdata", "_weight_scale")

    @property
    def scale_name(self) -> str:
        return "_weight_scale"

    @property
    def elements(self) -> Elements:
        return FLOATS[8] if self.bits is None else SIGNED_BYTES

    @property
    def codes(self) -> Codes:
        if self.bits is None:
            return Codes("float8", None, self.scaling.columns_of_one)
        return Codes("int", 128, self.scaling.columns_of_one)

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        stored = tensors[self.scale_name]
        if self.by_kernel("decode", tensors, out, scale=stored, rounding=self.dtype):
            return
        scale = self.scaling.arranged(stored).float()
        for rows, q in self.values(tensors, torch.float32, scratch):
            own = scale if self.scaling.strategy == "tensor" else scale[rows]
            self.scaling.multiply(q, own, slice(None), q)
            if self.dtype not in (torch.float32, out.dtype):
                q = scratch.get("rounded", tuple(q.shape), self.dtype, q.device).copy_(q)
            out[rows].copy_(q)
