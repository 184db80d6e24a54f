"""Weights as EXL3 stores them: trellis codes between two rotations.

The effective weight [O, I] is suh[i] · svh[o] times what Hadamard's matrix of 128, scaled to be
orthogonal, makes of each 128 × 128 block of the inner weight from both sides. It is float32 in one
order, whatever computes it: additions and subtractions of what lies 1, 2, 4, … 64 apart, along the
inputs and then along the outputs, and one product with suh · svh / 128, which is exact. The library has
the same inner weight and no one way from there: it rotates inputs and outputs in halves, or rounds the
weight to halves after each side.
Source: exllamav3 1.4.1, `LinearEXL3.get_weight_tensor`, `hadamard_inner.cuh`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS
from scoremode.schemes.exl3.trellis import BLOCK, TILE, codebook_values, inner_weight

__all__ = ["Exl3"]


@dataclass(frozen=True)
class Exl3:
    """A weight of `bits` a code in a `codebook`.

    - `shape`: of whole blocks as it is stored, or what of them a model has: see `fitted`.
    - `signs`: of suh and of svh whether a bit for each sign is all that is stored (`su`, `sv`), as the
      first releases did.
    """

    shape: tuple[int, int]
    bits: int
    codebook: str
    signs: tuple[bool, bool] = (False, False)

    @property
    def label(self) -> str:
        return f"EXL3 {self.bits} bits {self.codebook}"

    @property
    def tensors(self) -> tuple[str, ...]:
        of_inputs, of_outputs = self.signs
        return ("trellis", "su" if of_inputs else "suh", "sv" if of_outputs else "svh")

    @property
    def inputs(self) -> None:
        return None

    def fitted(self, shape: tuple[int, ...]) -> "Exl3":
        """The same for a model whose weight has this shape, where it is stored padded to whole blocks;
        itself for any other shape.

        What lies beyond are inputs that are always zero, and outputs that nothing reads.
        """
        padded = tuple(-(-size // BLOCK) * BLOCK for size in shape)
        return replace(self, shape=shape) if padded == self.shape else self

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        trellis = tensors["trellis"]
        suh, svh = (
            _signs(tensors[name]) if packed else tensors[name]
            for name, packed in zip(self.tensors[1:], self.signs, strict=True)
        )

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.exl3 import kernels

            kernels.decode(out, trellis, suh, svh, self.codebook)

        if not fallback.attempt(f"decode {self.label}", out.device, run):
            self._decode(trellis, suh, svh, out, scratch)

    def _decode(
        self,
        trellis: torch.Tensor,
        suh: torch.Tensor,
        svh: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        values = codebook_values(self.codebook, out.device)
        of_inputs, of_outputs = suh.float(), svh.float().div_(BLOCK)
        # Inputs that are decoded together, of one block of outputs.
        at_once = max(BLOCK_ELEMENTS[out.device.type] // BLOCK**2, 1) * BLOCK
        for begin in range(0, out.shape[0], BLOCK):
            rows = slice(begin, begin + BLOCK)
            for first in range(0, out.shape[1], at_once):
                columns = slice(first, min(first + at_once, len(of_inputs)))
                tiles = trellis[_tiles(columns), _tiles(rows)]
                by_input = inner_weight(tiles, values, scratch)
                other = scratch.get("rotated", tuple(by_input.shape), torch.float32, out.device)
                _rotate(by_input, other)
                by_output = by_input.copy_(other.permute(2, 1, 0))
                weight = _rotate(by_output, other).view(BLOCK, -1)
                factors = by_input.view(weight.shape)
                torch.mul(of_outputs[rows, None], of_inputs[columns], out=factors)
                target = out[rows, columns]
                target.copy_(weight.mul_(factors)[: target.shape[0], : target.shape[1]])


def _tiles(values: slice) -> slice:
    return slice(values.start // TILE, values.stop // TILE)


def _rotate(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Fills `other` with Hadamard's matrix times `x`, both float32 [128, …], and returns it; `x` is
    overwritten."""
    for bit in range(7):
        shape = (BLOCK >> (bit + 1), 2, x.numel() // BLOCK << bit)
        source, target = x.view(shape), other.view(shape)
        torch.add(source[:, 0], source[:, 1], out=target[:, 0])
        torch.sub(source[:, 0], source[:, 1], out=target[:, 1])
        x, other = other, x
    return x


def _signs(packed: torch.Tensor) -> torch.Tensor:
    """float16 [16 n] of int16 [n]: −1 where a bit is set, from the lowest one on."""
    bits = (packed.int().unsqueeze(1) >> torch.arange(16, device=packed.device)) & 1
    return (1 - 2 * bits).half().view(-1)
