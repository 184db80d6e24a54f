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

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.stored import Stored
from scoremode.schemes.decoding.by_kernel import by_kernel
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.elements import FLOATS, Elements
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.decoding.unpack import (
    E2M1,
    E2M3,
    E4M3,
    exponent_scales,
    look_up,
    look_up_scales,
    row_blocks,
)

__all__ = ["Mx", "build_mxfp4", "build_mxfp6", "build_mxfp8"]

_ELEMENTS = {4: E2M1, 6: E2M3, 8: E4M3}


@dataclass(frozen=True)
class Mx:
    """Elements of 4, 6 or 8 bits in groups of 32."""

    bits: int
    scaling: Scaling
    inputs: Inputs | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.scaling.shape

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

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        name, _ = self.tensors
        stored = tensors["weight_scale"]
        if by_kernel("decode", self, tensors, out, scale=stored, rounding=torch.bfloat16):
            return
        packed = tensors[name].view(torch.uint8)
        scales = exponent_scales(torch.bfloat16, packed.device)
        scale = look_up_scales(stored, scales, scratch)
        for rows in row_blocks(self.shape, out.device):
            q = look_up(packed[rows], _ELEMENTS[self.bits], torch.bfloat16, scratch)
            self.scaling.multiply(q, scale, rows, out)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        self.decode(tensors, out, scratch)
        return torch.ones(1, 1, device=out.device)

    def stored_factors(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        return None


def build_mxfp4(stored: Stored) -> Mx:
    """The Scheme of an MXFP4 module. Raises CheckpointError, UnsupportedFormat."""
    _check(stored, 4)
    rows, width = stored.matrix("weight_packed", ("U8",))
    return _build(stored, 4, (rows, 2 * width))


def build_mxfp6(stored: Stored) -> Mx:
    """The Scheme of an MXFP6 module. Raises CheckpointError, UnsupportedFormat."""
    _check(stored, 6)
    rows, width = stored.matrix("weight_packed", ("U8",))
    if width % 3:
        raise stored.wrong(f"its rows have {width} bytes, and four values take three")
    return _build(stored, 6, (rows, width // 3 * 4))


def build_mxfp8(stored: Stored) -> Mx:
    """The Scheme of an MXFP8 module. Raises CheckpointError, UnsupportedFormat."""
    _check(stored, 8)
    return _build(stored, 8, stored.matrix("weight", ("F8_E4M3",)))


def _check(stored: Stored, bits: int) -> None:
    weights = stored.weights
    if (
        (weights.type, weights.bits, weights.strategy) != ("float", bits, "group")
        or weights.group_size != 32
        or weights.scale_dtype not in (None, "uint8")  # what the format's name says anyway
        or not weights.symmetric
        or weights.actorder == "group"
    ):
        raise stored.unsupported(f"weights {weights}")


def _build(stored: Stored, bits: int, shape: tuple[int, int]) -> Mx:
    scaling = stored.scaling(shape)
    stored.expect("weight_scale", ("U8", "F8_E8M0"), [scaling.stored_shape])
    scheme = Mx(bits, scaling, stored.inputs(shape[1]))
    stored.finish(scheme)
    return scheme
