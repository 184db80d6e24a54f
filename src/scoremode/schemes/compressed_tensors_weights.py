"""Weights in compressed-tensors' formats.

pack-quantized: integers of 2 to 8 bits in int32 words, with scales and optional zero points.

Layout (compressed-tensors, `pack_to_int32`): values are stored plus 2^(bits-1) to be unsigned, and fill
a row's words from the lowest bits. Zero points are packed the same way along the output dimension,
except one per tensor, which is stored plain. Up to release 0.17 a word holds `32 // bits` values and
its top bits are padding; since 0.18 values run on over words. For 3, 5, 6 and 7 bits that differs, and
the width of what is stored tells which it is; where both widths coincide, the config's `version` does.

int-quantized, float-quantized and naive-quantized: one int8 or float8 an element, with scales.

- Integers of 2 to 8 bits, one in each int8. compressed-tensors stores them where inputs are quantized
  too (W8A8, W4A8, W4AFP8), and older releases for any integer weights. Zero points are int8 of the
  scales' shape, not packed.
- Floats of 8 bits (e4m3) with scales a tensor, a row, a group or a block.
- naive-quantized is what the library falls back to: either of them, by the type of the weights.

nvfp4-pack-quantized: e2m1 pairs in bytes under float8 scales of 16, under one global scale.

The first element of a pair is in the low nibble. The stored global scale divides: a weight is
e2m1 · (scale / global), the quotient and the product in float32, rounded to bfloat16 once, as
compressed-tensors decompresses it. An element times its float8 scale has at most 6 significant bits, so
it is exact in bfloat16, and the global scale is left for the product's epilogue.
Source: compressed-tensors' NVFP4PackedCompressor.

mxfp4-pack-quantized, mxfp6-pack-quantized, mxfp8-quantized: small floats under powers of two.

OCP Microscaling: groups of 32 elements, e2m1, e2m3 or e4m3, share a scale 2^(code - 127), one byte
(E8M0). Elements and scales are exact in bfloat16 and so is their product, but for the smallest of its
subnormals, where it is rounded to bfloat16 as compressed-tensors rounds it. Two e2m1 share a byte, the
first in the low nibble; four e2m3 share three bytes, the first in the lowest bits.
Source: compressed-tensors' MXFP4PackedCompressor, MXFP6PackedCompressor, MXFP8QuantizationCompressor;
OCP Microscaling Formats 1.0.
"""

from dataclasses import dataclass

import torch

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import (
    E4M3,
    FLOATS,
    SIGNED_BYTES,
    Elements,
    Tensors,
    look_up_scales,
)
from scoremode.schemes.packed import Packed


@dataclass(frozen=True)
class PackQuantized(Packed):
    """Integers of `bits`, symmetric or not.

    - `dense`: whether values run on over words.
    - `has_zero_point`, `has_g_idx`: whether the tensors are there. `weight_g_idx[i]` is the group
      of input `i` where the columns were quantized in order of their activations.
    """

    bits: int
    has_zero_point: bool = False
    has_g_idx: bool = False
    dense: bool = True

    @property
    def label(self) -> str:
        marks = (" asym" if self.has_zero_point else "") + (" g_idx" if self.has_g_idx else "")
        return f"W{self.bits}{activation_label(self.inputs)} {self.scaling.label}{marks}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return (
            "weight_packed",
            "weight_scale",
            *(("weight_zero_point",) if self.has_zero_point else ()),
            *(("weight_g_idx",) if self.has_g_idx else ()),
        )

    @property
    def codes(self) -> Codes:
        limit = (1 << self.bits) - 1 if self.has_zero_point else 1 << (self.bits - 1)
        if self.has_zero_point and self.scaling.strategy == "tensor":
            # That zero point is not packed and may be any int8.
            limit = 255
        return Codes("int", limit, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return Elements(self.bits, layout="dense" if self.dense else "padded")


def activation_label(inputs: Inputs | None) -> str:
    """`A16`, `A8`, `AFP8`, `A8 tensor asym`: what follows the weights' bits in people's names."""
    if inputs is None:
        return "A16"
    f = inputs.format
    how = {False: "static", "local": "local"}.get(
        f.dynamic, "" if f.strategy == "token" else f.strategy
    )
    words = (f"A{'FP' if f.type == 'float' else ''}{f.bits}", how, "" if f.symmetric else "asym")
    return " ".join(filter(None, words))


class Naive(Packed):
    """Weights whose codes a product can take as they are stored."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", self.scale_name)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        weight = tensors[self.tensors[0]]
        if "weight_zero_point" in tensors or weight.dtype not in (out.dtype, torch.int8):
            return super().factor(tensors, out, scratch)
        out.copy_(weight)
        return self.scales(tensors)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
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


class Nvfp4(Packed):
    """Groups of e2m1 under a local and a global scale."""

    @property
    def label(self) -> str:
        if self.inputs is None:
            return "NVFP4A16"
        own = self.inputs.format.strategy == "tensor_group"
        return "NVFP4" if own else f"NVFP4, inputs {self.inputs.label}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight_packed", "weight_scale", "weight_global_scale")

    @property
    def codes(self) -> Codes:
        return Codes("float")

    @property
    def elements(self) -> Elements:
        return FLOATS[4]

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        stored, whole = tensors["weight_scale"], tensors["weight_global_scale"].view(1)
        if self.by_kernel(
            "decode", tensors, out, scale=stored, whole=whole, rounding=torch.bfloat16
        ):
            return
        scale = look_up_scales(stored, E4M3.to(out.device) / whole, scratch)
        for rows, q in self.values(tensors, torch.float32, scratch):
            self.scaling.multiply(q, scale[rows], slice(None), q)
            if out.dtype != torch.bfloat16:
                rounded = scratch.get("rounded", tuple(q.shape), torch.bfloat16, q.device)
                q = rounded.copy_(q)
            out[rows].copy_(q)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        stored = tensors["weight_scale"]
        if not self.by_kernel("factor", tensors, out, scale=stored):
            scale = look_up_scales(stored, E4M3.to(out.device), scratch)
            for rows, q in self.values(tensors, torch.float32, scratch):
                self.scaling.multiply(q, scale, rows, out)
        return self.whole(tensors)

    def whole(self, tensors: Tensors) -> torch.Tensor:
        """float32 [1, 1]: what codes with their local scales in them are multiplied with."""
        return 1 / tensors["weight_global_scale"].view(1, 1)


@dataclass(frozen=True)
class Mx(Packed):
    """Elements of 4, 6 or 8 bits in groups of 32."""

    bits: int

    @property
    def label(self) -> str:
        name = f"MXFP{self.bits}"
        if self.inputs is None:
            return f"{name}A16"
        f = self.inputs.format
        if f.is_mx:
            return name if f.bits == self.bits else f"{name}A{f.bits}"
        if self.inputs.label == "float8 group 128":
            return f"{name}xFP8"
        return f"{name}, inputs {self.inputs.label}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight" if self.bits == 8 else "weight_packed", "weight_scale")

    @property
    def codes(self) -> Codes:
        return Codes("float")

    @property
    def elements(self) -> Elements:
        return FLOATS[self.bits]

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        self.decode(tensors, out, scratch)
        return torch.ones(1, 1, device=out.device)
