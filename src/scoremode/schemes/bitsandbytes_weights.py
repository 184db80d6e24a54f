"""Weights as bitsandbytes stores them.

LLM.int8 has 8 bits: `weight` int8 and `SCB`, the largest
magnitude of each row.

The effective weight is code · SCB · (1 / 127), each product rounded in float32. LLM.int8 quantizes
inputs too, a token's to int8 by its largest magnitude, but for columns that hold an outlier in any
token of a window (`quantize_apart`): these are multiplied as they are with the effective
weight's columns, in the compute dtype, and added to the rounded product of the codes.
Source: bitsandbytes 0.50, `int8_vectorwise_dequant`, `MatMul8bitLt`, `int8_mixed_scaled_mm`.

Weights of 4 bits are indices into a table of 16, under the largest
magnitude of a block.

A weight [O, I] is one run of codes, two in a byte, the first in the high nibble; a block is a run
of `blocksize` of them, wherever a row ends. The effective weight is table[code] · absmax in
float32, rounded to the dtype that the weight had before it was quantized. With double quantization
absmax is itself a table's value times the largest magnitude of a block of them, plus an offset, in
float32.
Source: bitsandbytes 0.50, `dequantize_4bit` and `dequantize_blockwise` on a CPU.
"""

import math
from dataclasses import dataclass

import torch

from scoremode.lib import fallback
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS, Tensors, row_blocks

# Normal quantiles; and 0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3, 1 in the order of their codes.
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
# By the type's name: [16] float32. Code 8 of fp4 is a positive zero.
TABLES = {
    "nf4": torch.tensor(_NF4),
    "fp4": torch.tensor((*_FP4, 0.0, *(-value for value in _FP4[1:]))),
}


@dataclass(frozen=True)
class Nested:
    """Quantized absmax: blocks of `blocksize` of them, less `offset`."""

    blocksize: int
    offset: float


@dataclass(frozen=True)
class FourBit:
    """A weight of `type` in blocks of `blocksize`, rounded in `dtype`."""

    shape: tuple[int, int]
    type: str
    blocksize: int
    dtype: torch.dtype
    nested: Nested | None = None

    @property
    def label(self) -> str:
        double = " double" if self.nested else ""
        return f"{self.type.upper()} g{self.blocksize}{double}"

    @property
    def tensors(self) -> tuple[str, ...]:
        nested = ("weight.nested_absmax", "weight.nested_quant_map") if self.nested else ()
        return ("weight", "weight.absmax", *nested)

    @property
    def inputs(self) -> None:
        return None

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        packed = tensors["weight"].contiguous().view(torch.uint8).view(-1)
        absmax, table = self._absmax(tensors), TABLES[self.type].to(out.device)

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import bitsandbytes_kernels

            bitsandbytes_kernels.decode(out, packed, absmax, table, self.blocksize, self.dtype)

        if not fallback.attempt(f"decode {self.label}", out.device, run):
            self._decode(packed, absmax, table, out, scratch)

    def _absmax(self, tensors: Tensors) -> torch.Tensor:
        """float32 [blocks]."""
        stored = tensors["weight.absmax"]
        if self.nested is None:
            return stored
        largest = tensors["weight.nested_absmax"].repeat_interleave(self.nested.blocksize)
        values = tensors["weight.nested_quant_map"].index_select(0, stored.int())
        return values.mul_(largest[: len(values)]).add_(self.nested.offset)

    def _decode(
        self,
        packed: torch.Tensor,
        absmax: torch.Tensor,
        table: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        # One look-up moves the two values of a byte.
        codes = torch.arange(256, device=out.device)
        pairs = torch.stack((table[codes >> 4], table[codes & 15]), 1).view(torch.int64).view(-1)
        flat, count = out.view(-1), math.prod(self.shape)
        step = max(BLOCK_ELEMENTS[out.device.type] // self.blocksize, 1) * self.blocksize
        for begin in range(0, count, step):
            end = min(begin + step, count)
            run = packed[begin // 2 : -(-end // 2)]
            index = scratch.get("index", (len(run),), torch.int32, out.device).copy_(run)
            values = scratch.get("runs", (len(run),), torch.int64, out.device)
            torch.index_select(pairs, 0, index, out=values)
            q = values.view(torch.float32)[: end - begin]
            whole = len(q) - len(q) % self.blocksize
            first = begin // self.blocksize
            blocks = q[:whole].view(-1, self.blocksize)
            blocks.mul_(absmax[first : first + len(blocks)].unsqueeze(1))
            if whole < len(q):
                q[whole:].mul_(absmax[-1])
            if self.dtype not in (torch.float32, out.dtype):
                q = scratch.get("rounded", tuple(q.shape), self.dtype, q.device).copy_(q)
            flat[begin:end].copy_(q)


# 1 / 127 in float32, as the library writes it.
INVERSE = 7.874015718698502e-3


@dataclass(frozen=True)
class LlmInt8:
    """A weight of int8 with a largest magnitude a row."""

    shape: tuple[int, int]
    inputs: Inputs | None

    @property
    def label(self) -> str:
        return "LLM.int8"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "SCB")

    @property
    def codes(self) -> Codes:
        return Codes("int", 128)

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        weight, largest = tensors["weight"], tensors["SCB"]

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import bitsandbytes_kernels

            bitsandbytes_kernels.decode_int8(out, weight, largest, INVERSE)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        for rows in row_blocks(self.shape, out.device):
            q = scratch.get("values", tuple(weight[rows].shape), torch.float32, out.device)
            q.copy_(weight[rows]).mul_(largest[rows].unsqueeze(1)).mul_(INVERSE)
            out[rows].copy_(q)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        out.copy_(tensors["weight"])
        return _scale(tensors)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        weight = tensors["weight"]
        # Contiguous and aligned as the device's matmuls want it.
        fits = weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % 16 == 0
        return Quantized(weight, _scale(tensors)) if fits else None

    def columns(self, tensors: Tensors, columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        chosen = tensors["weight"][:, columns].float()
        return chosen.mul_(tensors["SCB"].unsqueeze(1)).mul_(INVERSE).to(dtype)


def _scale(tensors: Tensors) -> torch.Tensor:
    return tensors["SCB"].unsqueeze(1) * INVERSE
