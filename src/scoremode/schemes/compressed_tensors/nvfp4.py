"""nvfp4-pack-quantized: e2m1 pairs in bytes under float8 scales of 16, under one global scale.

The first element of a pair is in the low nibble. The stored global scale divides: a weight is
e2m1 · (scale / global), the quotient and the product in float32, rounded to bfloat16 once, as
compressed-tensors decompresses it. An element times its float8 scale has at most 6 significant bits, so
it is exact in bfloat16, and the global scale is left for the product's epilogue.
Source: compressed-tensors' NVFP4PackedCompressor.
"""

from collections.abc import Mapping

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.stored import Stored
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import E4M3, FLOATS, Elements, look_up_scales
from scoremode.schemes.packed import Packed

__all__ = ["Nvfp4", "build"]


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

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
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

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        stored = tensors["weight_scale"]
        if not self.by_kernel("factor", tensors, out, scale=stored):
            scale = look_up_scales(stored, E4M3.to(out.device), scratch)
            for rows, q in self.values(tensors, torch.float32, scratch):
                self.scaling.multiply(q, scale, rows, out)
        return self.whole(tensors)

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """float32 [1, 1]: what codes with their local scales in them are multiplied with."""
        return 1 / tensors["weight_global_scale"].view(1, 1)


def build(stored: Stored) -> Nvfp4:
    """The Scheme of an NVFP4 module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        (weights.type, weights.bits) != ("float", 4)
        or (weights.strategy, weights.group_size) != ("tensor_group", 16)
        or not weights.symmetric
    ):
        raise stored.unsupported(f"weights {weights}")
    rows, width = stored.matrix("weight_packed", ("U8",))
    scaling = stored.scaling((rows, 2 * width))
    stored.expect("weight_scale", ("F8_E4M3",), [scaling.stored_shape])
    stored.expect_one("weight_global_scale", ("F32",))
    return stored.used_by(Nvfp4(scaling, inputs=stored.inputs(2 * width)))
