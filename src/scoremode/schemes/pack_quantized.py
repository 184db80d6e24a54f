"""pack-quantized: integers in int32 words, with scales and optional zero points.

The effective weight is `(q - zero_point) · scale`, multiplied and rounded in the scale's own dtype,
as compressed-tensors decompresses it and as weight-only kernels (Marlin, Machete) multiply it:
bf16(q·s), not the exact product. Integers and their differences are at most 255 apart from zero and
so exact in bf16.

Layout (compressed-tensors, `pack_to_int32`): values are offset by 2^(bits-1) to be unsigned, and
fill a word from its lowest bits; each row starts a new word. Zero points are packed the same way
along the output dimension, except one per tensor, which is stored plain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from scoremode.schemes.base import Scratch

__all__ = ["PackQuantized"]

# Rows decoded at a time: the scratch of a block stays in a core's cache.
_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class PackQuantized:
    """4- or 8-bit integers, symmetric or not, scaled per group of inputs, channel or tensor.

    - `group_size`: inputs that share a scale, None for the whole row.
    - `has_zero_point`, `has_g_idx`: whether the tensors are there. `weight_g_idx[i]` is the group
      of input `i` where the columns were quantized in order of their activations.
    """

    shape: tuple[int, int]
    bits: int
    strategy: str
    group_size: int | None
    has_zero_point: bool
    has_g_idx: bool

    @property
    def label(self) -> str:
        size = {"channel": " channel", "tensor": " tensor"}.get(self.strategy)
        marks = (" asym" if self.has_zero_point else "") + (" g_idx" if self.has_g_idx else "")
        return f"W{self.bits}A16{size or f' g{self.group_size}'}{marks}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return (
            "weight_packed",
            "weight_scale",
            *(("weight_zero_point",) if self.has_zero_point else ()),
            *(("weight_g_idx",) if self.has_g_idx else ()),
        )

    @property
    def groups(self) -> int:
        return math.ceil(self.shape[1] / self.group_size) if self.group_size else 1

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        rows, columns = self.shape
        packed = tensors["weight_packed"].view(torch.uint8)
        scale = tensors["weight_scale"]
        # One scale a row may be stored as [O], which would spread over the columns instead.
        scale = scale.reshape(1 if self.strategy == "tensor" else rows, -1)
        zero_point = self._zero_points(tensors, scale.dtype)
        g_idx = tensors["weight_g_idx"].long() if self.has_g_idx else None
        step = max(1, _BLOCK_ELEMENTS // columns)
        for begin in range(0, rows, step):
            block = slice(begin, min(begin + step, rows))
            q = self._unpack(packed[block], scale.dtype, scratch)[:, :columns]
            one = slice(0, 1) if self.strategy == "tensor" else block
            if zero_point is not None:
                self._by_group(q, zero_point[one], g_idx, torch.Tensor.sub_)
            self._by_group(q, scale[one], g_idx, torch.Tensor.mul_)
            out[block].copy_(q)

    def _unpack(self, packed: torch.Tensor, dtype: torch.dtype, scratch: Scratch) -> torch.Tensor:
        """Values [rows, ≥ columns] of bytes [rows, bytes], as `dtype`."""
        rows, width = packed.shape
        if self.bits == 8:
            q = scratch.get("values", (rows, width), dtype, packed.device)
            return q.copy_(packed).sub_(128)
        # One look-up gives both values of a byte: the pair is moved as a single integer.
        table = _nibble_pairs(dtype, packed.device)
        index = scratch.get("index", (rows, width), torch.int32, packed.device).copy_(packed)
        pairs = scratch.get("pairs", (rows * width,), table.dtype, packed.device)
        torch.index_select(table, 0, index.view(-1), out=pairs)
        return pairs.view(dtype).view(rows, 2 * width)

    def _by_group(self, q: torch.Tensor, values: torch.Tensor, g_idx, op) -> None:
        """`op(q, values)` in place, `values` [rows or 1, groups] spread over the columns."""
        columns, size = self.shape[1], self.group_size
        if size is None:
            op(q, values)
        elif g_idx is not None:
            op(q, values.index_select(1, g_idx))
        elif columns % size == 0:
            op(q.unflatten(1, (-1, size)), values.unsqueeze(2))
        else:
            op(q, values.repeat_interleave(size, dim=1)[:, :columns])

    def _zero_points(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor | None:
        """[rows or 1, groups] in `dtype`, None for symmetric weights."""
        if not self.has_zero_point:
            return None
        stored = tensors["weight_zero_point"]
        if self.strategy == "tensor":
            return stored.reshape(1, 1).to(dtype)
        by_group = stored.unsqueeze(2).view(torch.uint8).transpose(0, 1).flatten(1)
        if self.bits == 8:
            values = by_group.to(dtype) - 128
        else:
            pairs = torch.stack((by_group & 15, by_group >> 4), dim=2).flatten(1)
            values = pairs.to(dtype) - 8
        return values[:, : self.shape[0]].T.contiguous()


@lru_cache(maxsize=8)
def _nibble_pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[256]: both signed 4-bit values of each byte, low nibble first, side by side in one int."""
    byte = torch.arange(256)
    pair = torch.stack((byte & 15, byte >> 4), dim=1) - 8
    packed = pair.to(dtype).view(torch.int32 if dtype.itemsize == 2 else torch.int64)
    return packed.view(256).to(device)
