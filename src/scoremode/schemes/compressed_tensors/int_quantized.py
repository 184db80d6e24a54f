"""int-quantized: integers of 2 to 8 bits, one in each int8, with scales and optional zero points.

compressed-tensors stores it where inputs are quantized too (W8A8, W4A8, W4AFP8), and older releases for
any integer weights. Zero points are int8 of the scales' shape, not packed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.pack_quantized import activation_label
from scoremode.schemes.compressed_tensors.stored import SCALES, Stored
from scoremode.schemes.decoding.by_kernel import by_kernel
from scoremode.schemes.decoding.codes import Codes, Quantized, usable
from scoremode.schemes.decoding.elements import SIGNED_BYTES, Elements
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.decoding.unpack import row_blocks

__all__ = ["IntQuantized", "build"]


@dataclass(frozen=True)
class IntQuantized:
    """Integers of `bits` in int8, symmetric or not."""

    bits: int
    scaling: Scaling
    has_zero_point: bool = False
    inputs: Inputs | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.scaling.shape

    @property
    def label(self) -> str:
        mark = " asym" if self.has_zero_point else ""
        return f"W{self.bits}{activation_label(self.inputs)} {self.scaling.label}{mark}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale", *(("weight_zero_point",) if self.has_zero_point else ()))

    @property
    def codes(self) -> Codes:
        # What int8 can hold, less a zero point of int8; a value of more than `bits` is decoded as well.
        return Codes("int", 255 if self.has_zero_point else 128, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return SIGNED_BYTES

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        stored = tensors["weight_scale"]
        if by_kernel("decode", self, tensors, out, scale=stored, rounding=stored.dtype):
            return
        scale = self.scaling.arranged(stored)
        zero_point = self._zero_points(tensors, scale.dtype)
        for rows in row_blocks(self.shape, out.device):
            q = self._values(tensors["weight"][rows], scale.dtype, zero_point, rows, scratch)
            self.scaling.multiply(q, scale, rows, out)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        zero_point = self._zero_points(tensors, torch.float32)
        if zero_point is None:
            out.copy_(tensors["weight"])
        elif not by_kernel("factor", self, tensors, out):
            for rows in row_blocks(self.shape, out.device):
                weight = tensors["weight"][rows]
                out[rows].copy_(self._values(weight, torch.float32, zero_point, rows, scratch))
        return self._scales(tensors)

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        weight = tensors["weight"]
        if self.has_zero_point or not usable(weight, dtype):
            return None
        return Quantized(weight, self._scales(tensors))

    def _scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.scaling.arranged(tensors["weight_scale"]).float()

    def _values(
        self,
        weight: torch.Tensor,
        dtype: torch.dtype,
        zero_point: torch.Tensor | None,
        rows: slice,
        scratch: Scratch,
    ) -> torch.Tensor:
        q = scratch.get("values", tuple(weight.shape), dtype, weight.device).copy_(weight)
        if zero_point is not None:
            self.scaling.subtract(q, zero_point, rows)
        return q

    def _zero_points(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor | None:
        if not self.has_zero_point:
            return None
        return self.scaling.arranged(tensors["weight_zero_point"]).to(dtype)


def build(stored: Stored) -> IntQuantized:
    """The Scheme of an int-quantized module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        weights.type != "int"
        or not 2 <= weights.bits <= 8
        or weights.strategy not in ("group", "channel", "tensor")
        or weights.actorder == "group"
    ):
        order = f" in activation order {weights.actorder}" if weights.actorder else ""
        raise stored.unsupported(f"weights {weights}{order}")
    shape = stored.matrix("weight", ("I8",))
    scaling = stored.scaling(shape)
    inputs = stored.inputs(shape[1])
    stored.expect_scale("weight_scale", SCALES, scaling)
    if weights.symmetric and "weight_zero_point" in stored.tensors:
        raise stored.wrong("has zero points, and the config says symmetric")
    if not weights.symmetric:
        stored.expect_scale("weight_zero_point", ("I8",), scaling)
    scheme = IntQuantized(weights.bits, scaling, not weights.symmetric, inputs)
    stored.finish(scheme)
    return scheme
