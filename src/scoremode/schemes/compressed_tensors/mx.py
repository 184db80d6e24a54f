"""mxfp4-pack-quantized, mxfp6-pack-quantized, mxfp8-quantized: small floats under powers of two.

OCP Microscaling: groups of 32 elements, e2m1, e2m3 or e4m3, share a scale 2^(code - 127), one byte
(E8M0). Elements and scales are exact in bfloat16 and so is their product, but for the smallest of its
subnormals, where it is rounded to bfloat16 as compressed-tensors rounds it. Two e2m1 share a byte, the
first in the low nibble; four e2m3 share three bytes, the first in the lowest bits.
Source: compressed-tensors' MXFP4PackedCompressor, MXFP6PackedCompressor, MXFP8QuantizationCompressor;
OCP Microscaling Formats 1.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.stored import Stored
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import FLOATS, Elements
from scoremode.schemes.packed import Packed

__all__ = ["Mx", "build"]


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

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        self.decode(tensors, out, scratch)
        return torch.ones(1, 1, device=out.device)


def build(stored: Stored, bits: int) -> Mx:
    """The Scheme of an MX module of `bits`. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        (weights.type, weights.bits, weights.strategy) != ("float", bits, "group")
        or weights.group_size != 32
        or weights.scale_dtype not in (None, "uint8")  # what the format's name says anyway
        or not weights.symmetric
        or weights.actorder == "group"
    ):
        raise stored.unsupported(f"weights {weights}")
    if bits == 8:
        rows, width = stored.matrix("weight", ("F8_E4M3",))
    else:
        rows, width = stored.matrix("weight_packed", ("U8",))
    if bits == 6 and width % 3:
        raise stored.wrong(f"its rows have {width} bytes, and four values take three")
    columns = width * 8 // bits
    scaling = stored.scaling((rows, columns))
    stored.expect("weight_scale", ("U8", "F8_E8M0"), [scaling.stored_shape])
    return stored.used_by(Mx(scaling, bits, inputs=stored.inputs(columns)))
