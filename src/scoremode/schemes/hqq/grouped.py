"""Weights as HQQ stores them: `W_q`, `scale` and `zero`, (q − zero) · scale.

A weight [O, I] is seen as a matrix of R rows whose rows (axis 1, R = O · I / group size) or columns
(axis 0, R = group size) are its groups. Codes of `bits` lie in bytes, those of 3 bits in words of
32: a row of bytes holds as many rows of codes as it has room for, R / count apart, the first one in
its highest bits. Codes less zeros, which are fractions, are rounded in the dtype of the scales, and
so is the product.
Source: hqq 0.2.8, `Quantizer.dequantize`, `BitPack`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import row_blocks

__all__ = ["PACKINGS", "PACKING_OF", "Grouped", "Packing"]


@dataclass(frozen=True)
class Packing:
    """How many codes of how many `bits` an element of `dtype` holds."""

    bits: int
    count: int
    dtype: torch.dtype = torch.uint8


# By the library's names.
PACKINGS = {
    "8bit_u8": Packing(8, 1),
    "4bit_u8": Packing(4, 2),
    "3bit_32": Packing(3, 10, torch.int32),
    "2bit_u8": Packing(2, 4),
    "1bit_u8": Packing(1, 8),
}
# The name by bits.
PACKING_OF = {8: "8bit_u8", 6: "8bit_u8", 5: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8",
              1.58: "2bit_u8", 1: "1bit_u8"}  # fmt: skip


@dataclass(frozen=True)
class Grouped:
    """A weight in groups of `size` along `axis`, rounded in `dtype`; `bits` by its name."""

    shape: tuple[int, int]
    bits: float
    size: int
    axis: int
    packing: Packing
    dtype: torch.dtype

    @property
    def label(self) -> str:
        along = "" if self.axis else " axis 0"
        return f"HQQ {self.bits:.3g} bits g{self.size}{along}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("W_q", "scale", "zero")

    @property
    def inputs(self) -> None:
        return None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the matrix that groups are rows or columns of."""
        count = self.shape[0] * self.shape[1] // self.size
        return (count, self.size) if self.axis else (self.size, count)

    @property
    def step(self) -> int:
        """Rows of elements that codes are packed in."""
        return -(-self.grid[0] // self.packing.count)

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        # They may be stored as floats of the same bytes (`view_as_float`).
        packed = tensors["W_q"].contiguous().view(self.packing.dtype)
        scale, zero = tensors["scale"], tensors["zero"]

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.hqq import kernels

            kernels.decode(out, packed, scale, zero, self)

        if not fallback.attempt(f"decode {self.label}", out.device, run):
            self._decode(packed, scale, zero, out, scratch)

    def _decode(
        self,
        packed: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        (rows, columns), bits = self.grid, self.packing.bits
        grid = out.view(rows, columns)
        for nth in range(self.packing.count):
            shift, first = (self.packing.count - 1 - nth) * bits, nth * self.step
            for block in row_blocks((min(self.step, rows - first), columns), out.device):
                source = packed[block]
                codes = scratch.get("codes", tuple(source.shape), packed.dtype, out.device)
                torch.bitwise_right_shift(source, shift, out=codes)
                codes.bitwise_and_((1 << bits) - 1)
                q = scratch.get("values", tuple(source.shape), self.dtype, out.device).copy_(codes)
                target = slice(first + block.start, first + block.stop)
                of_rows = target if self.axis else slice(None)
                grid[target].copy_(q.sub_(zero[of_rows]).mul_(scale[of_rows]))
