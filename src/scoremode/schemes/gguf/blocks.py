"""Weights in blocks of one of ggml's types, each row a whole number of them.

On a GPU one CUDA decoder reads all types, if there is Triton for it; plain torch, which runs anywhere
else, gives the same bits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from scoremode.lib import fallback
from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import row_blocks
from scoremode.schemes.gguf.block_types import BLOCK_TYPES
from scoremode.schemes.gguf.parts import BlockType, Scales

__all__ = ["Blocks"]


@dataclass(frozen=True)
class Blocks:
    """A weight [O, I] of a `type` by its name, stored as uint8 [O, bytes of a row].

    The effective weight is what ggml's own code makes of it in float32, rounded once to the dtype that
    is asked for.

    - `inputs`: how llama.cpp rounds the linear's input, where that is asked for.
    """

    type: str
    shape: tuple[int, int]
    inputs: GgmlInputs | None = None

    @property
    def label(self) -> str:
        return self.type

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.type,)

    @property
    def block_type(self) -> BlockType:
        return BLOCK_TYPES[self.type]

    @property
    def codes(self) -> Codes:
        return Codes("int", self.block_type.limit, self.block_type.group)

    def below(self, count: int) -> "Blocks":
        """The format of `count` such weights one below the other."""
        return self.of_rows(count * self.shape[0])

    def of_rows(self, count: int) -> "Blocks":
        return replace(self, shape=(count, self.shape[1]))

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        packed = tensors[self.type].contiguous()

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.gguf import kernels

            kernels.decode(out, packed, self.type)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        kind = self.block_type
        for rows, blocks in self._blocks(packed):
            codes, (scale, minimum) = kind.codes(blocks, scratch), kind.scales(blocks)
            target = out[rows]
            direct = out.dtype == torch.float32 and target.is_contiguous()
            values = (
                target
                if direct
                else scratch.get("values", tuple(target.shape), torch.float32, out.device)
            )
            groups = values.view(-1, kind.group)
            groups.copy_(codes.view(groups.shape)).mul_(scale.view(-1, 1))
            if minimum is not None:
                groups.add_(minimum.view(-1, 1))
            if not direct:
                target.copy_(values)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        packed = tensors[self.type].contiguous()
        scale = self._by_group(packed.device)

        def run() -> None:
            from scoremode.schemes.gguf import kernels

            kernels.factor(out, scale, packed, self.type)

        if fallback.attempt(f"factor {self.label}", out.device, run):
            return scale
        for rows, blocks in self._blocks(packed):
            out[rows].copy_(self.block_type.codes(blocks, scratch).view(-1, self.shape[1]))
        return self.scales(tensors).scale

    def minimum(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return self.scales(tensors).minimum if self.block_type.has_minimum else None

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        return None

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> Scales:
        """Both float32 [O, I / group]; the minimum, added to code times scale, None for most types."""
        packed = tensors[self.type].contiguous()
        scale = self._by_group(packed.device)
        minimum = torch.empty_like(scale) if self.block_type.has_minimum else None

        def run() -> None:
            from scoremode.schemes.gguf import kernels

            kernels.scales(scale, minimum, packed, self.type)

        if fallback.attempt(f"scales {self.label}", packed.device, run):
            return Scales(scale, minimum)
        parts = [self.block_type.scales(blocks) for _, blocks in self._blocks(packed)]
        scale = torch.cat([part.scale for part in parts]).view(self.shape[0], -1)
        minimums = [part.minimum for part in parts if part.minimum is not None]
        return Scales(scale, torch.cat(minimums).view(scale.shape) if minimums else None)

    def _by_group(self, device: torch.device) -> torch.Tensor:
        """float32 [O, I / group], not filled."""
        groups = self.shape[1] // self.block_type.group
        return torch.empty(self.shape[0], groups, dtype=torch.float32, device=device)

    def _blocks(self, packed: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their blocks as uint8 [n, bytes]."""
        if packed.storage_offset() % 2:
            # Halves can't be read from an odd byte on.
            packed = packed.clone()
        for rows in row_blocks(self.shape, packed.device):
            yield rows, packed[rows].view(-1, self.block_type.bytes)
