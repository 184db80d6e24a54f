"""int-quantized, float-quantized and naive-quantized: one int8 or float8 an element, with scales.

- Integers of 2 to 8 bits, one in each int8. compressed-tensors stores them where inputs are quantized
  too (W8A8, W4A8, W4AFP8), and older releases for any integer weights. Zero points are int8 of the
  scales' shape, not packed.
- Floats of 8 bits (e4m3) with scales a tensor, a row, a group or a block.
- naive-quantized is what the library falls back to: either of them, by the type of the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.pack_quantized import activation_label
from scoremode.schemes.compressed_tensors.stored import SCALES, Stored
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import FLOATS, SIGNED_BYTES, Elements
from scoremode.schemes.packed import Packed

__all__ = ["FloatQuantized", "IntQuantized", "Naive", "build", "build_float", "build_int"]


class Naive(Packed):
    """Weights whose codes a product can take as they are stored."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", self.scale_name)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        weight = tensors[self.tensors[0]]
        if "weight_zero_point" in tensors or weight.dtype not in (out.dtype, torch.int8):
            return super().factor(tensors, out, scratch)
        out.copy_(weight)
        return self.scales(tensors)

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        weight = tensors[self.tensors[0]]
        # Contiguous and aligned as the device's matmuls want it.
        fits = weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % 16 == 0
        if not fits or "weight_zero_point" in tensors:
            return None
        return Quantized(weight, self.scales(tensors))


@dataclass(frozen=True)
class IntQuantized(Naive):
    """Integers of `bits` in int8, symmetric or not."""

    bits: int
    has_zero_point: bool = False

    @property
    def label(self) -> str:
        mark = " asym" if self.has_zero_point else ""
        return f"W{self.bits}{activation_label(self.inputs)} {self.scaling.label}{mark}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*super().tensors, *(("weight_zero_point",) if self.has_zero_point else ()))

    @property
    def codes(self) -> Codes:
        # What int8 can hold, less a zero point of int8; a value of more than `bits` is decoded as well.
        return Codes("int", 255 if self.has_zero_point else 128, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return SIGNED_BYTES


class FloatQuantized(Naive):
    """Weights of one float8 an element; the effective weight is rounded in the scale's dtype."""

    @property
    def label(self) -> str:
        if self.inputs is None:
            return f"FP8 W8A16 {self.scaling.label}"
        by = (self.scaling.strategy, self.inputs.label)
        preset = {
            ("tensor", "float8 tensor static"): "FP8",
            ("channel", "float8 token"): "FP8_DYNAMIC",
            ("block", "float8 group 128"): "FP8_BLOCK",
        }.get(by)
        return preset or f"FP8 {self.scaling.label}, inputs {self.inputs.label}"

    @property
    def codes(self) -> Codes:
        rows = self.scaling.block[0] if self.scaling.block else 1
        return Codes("float8", None, self.scaling.columns_of_one, rows)

    @property
    def elements(self) -> Elements:
        return FLOATS[8]


def build(stored: Stored) -> IntQuantized | FloatQuantized:
    """The Scheme of a naive-quantized module. Raises CheckpointError, UnsupportedFormat."""
    return build_int(stored) if stored.weights.type == "int" else build_float(stored)


def build_int(stored: Stored) -> IntQuantized:
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
    if stored.has_zero_points():
        stored.expect_scale("weight_zero_point", ("I8",), scaling)
    return stored.used_by(IntQuantized(scaling, weights.bits, not weights.symmetric, inputs=inputs))


def build_float(stored: Stored) -> FloatQuantized:
    """The Scheme of a float-quantized module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        (weights.type, weights.bits) != ("float", 8)
        or not weights.symmetric
        or weights.strategy not in ("tensor", "channel", "group", "block")
        or weights.actorder == "group"
        or weights.is_mx
    ):
        raise stored.unsupported(f"weights {weights}")
    shape = stored.matrix("weight", ("F8_E4M3",))
    scheme = FloatQuantized(stored.scaling(shape), inputs=stored.inputs(shape[1]))
    stored.expect_scale("weight_scale", SCALES, scheme.scaling)
    return stored.used_by(scheme)
