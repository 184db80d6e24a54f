"""float-quantized: float8 (e4m3) weights with scales a tensor, a row, a group or a block."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.stored import SCALES, Stored
from scoremode.schemes.decoding.by_kernel import by_kernel
from scoremode.schemes.decoding.codes import Codes, Quantized, usable
from scoremode.schemes.decoding.elements import FLOATS, Elements
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.decoding.unpack import E4M3, look_up, row_blocks

__all__ = ["FloatQuantized", "build"]


@dataclass(frozen=True)
class FloatQuantized:
    """Weights of one float8 an element; the effective weight is rounded in the scale's dtype."""

    scaling: Scaling
    inputs: Inputs | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.scaling.shape

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
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    @property
    def codes(self) -> Codes:
        return Codes("float8", None, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return FLOATS[8]

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        stored = tensors["weight_scale"]
        if by_kernel("decode", self, tensors, out, scale=stored, rounding=stored.dtype):
            return
        scale = self.scaling.arranged(stored)
        weight = tensors["weight"].view(torch.uint8)
        for rows in row_blocks(self.shape, out.device):
            q = look_up(weight[rows], E4M3, scale.dtype, scratch)
            self.scaling.multiply(q, scale, rows, out)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        weight = tensors["weight"]
        if out.dtype == weight.dtype:
            out.copy_(weight)
        elif not by_kernel("factor", self, tensors, out):
            for rows in row_blocks(self.shape, out.device):
                codes = weight[rows].view(torch.uint8)
                out[rows].copy_(look_up(codes, E4M3, out.dtype, scratch))
        return self._scales(tensors)

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        weight = tensors["weight"]
        return Quantized(weight, self._scales(tensors)) if usable(weight, dtype) else None

    def _scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.scaling.arranged(tensors["weight_scale"]).float()


def build(stored: Stored) -> FloatQuantized:
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
    scheme = FloatQuantized(stored.scaling(shape), stored.inputs(shape[1]))
    stored.expect_scale("weight_scale", SCALES, scheme.scaling)
    stored.finish(scheme)
    return scheme
