"""Weights in ModelOpt's formats.

FP8: one float8 an element, with a float32 scale a tensor, a row or a block.

The effective weight is code times scale, the scale rounded to the dtype that is computed in before the
product is: so ModelOpt dequantizes, and Marlin's scales are of that dtype, too. Where inputs are
quantized as well the product's epilogue has the scale as it is stored.
Source: ModelOpt 0.47, `FP8QTensor.dequantize`, `from_quantized_weight`.

MXFP8: e4m3 in groups of 32 under powers of two, one byte each.

The effective weight is the product in float32, rounded to the dtype that is computed in. The power
of two of inputs is the next one above a group's largest magnitude / 448, where compressed-tensors takes
one that may be below it: nothing is cut off.
Source: ModelOpt 0.47, `MXFP8QTensor`; vLLM 0.33, `_mxfp8_e4m3_quantize_torch`.

NVFP4: e2m1 pairs in bytes under float8 scales of 16, all under one that multiplies.

The effective weight is e2m1 · (scale · global), both products in float32, rounded to the dtype that is
computed in: so ModelOpt dequantizes, and vLLM's emulation. (ModelOpt's Triton kernel has
(e2m1 · scale) · global, which rounds once less: seldom another bit of bfloat16.) compressed-tensors'
converter stores 1 / global, by which it then divides: two roundings more. A code of -0 is -0, as in
vLLM; ModelOpt's table has 0 there.
Source: ModelOpt 0.47, `NVFP4QTensor.dequantize`; vLLM 0.33, `dequantize_to_dtype`.

AWQ: integers of 4 bits, two rows a byte, under scales of groups of a row's columns.

Row 2i of a byte is in its low nibble, row 2i + 1 in the high one, both in two's complement. The
effective weight is code times scale in float32, rounded to the dtype that is computed in, as ModelOpt's
quantizer simulates it: its export has no dequantizer. Inputs are multiplied by `pre_quant_scale`, where
there is one, in the dtype that is computed in, as ModelOpt's own quantizers do it and the kernels that
run such files: multiplied into the weight it would round each of its elements once more.

Of W4A8_AWQ what is multiplied is a float8: of code times scale, rounded to bfloat16 as in a model of
that dtype, over `weight_scale_2`.
Source: ModelOpt 0.47, `pack_int4_in_uint8`, `fake_quant_impl`, `fp8_eager`, `TensorQuantizer.forward`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from scoremode.schemes import compressed_tensors_weights as compressed_tensors
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors_weights import FloatQuantized, Mx
from scoremode.schemes.decoding.codes import Codes, round_float
from scoremode.schemes.decoding.unpack import E4M3, Elements, Tensors, look_up_scales, row_blocks
from scoremode.schemes.packed import Packed


class Mxfp8(Mx):
    """Elements of 8 bits in groups of 32, rounded in float32."""

    @property
    def label(self) -> str:
        return "MXFP8"

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class Float8(FloatQuantized):
    """Weights of one float8 an element, rounded in the dtype that they are decoded into."""

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        scale = tensors["weight_scale"].to(out.dtype)
        super().decode({**tensors, "weight_scale": scale}, out, scratch)


@dataclass(frozen=True)
class Nvfp4(compressed_tensors.Nvfp4):
    """Groups of e2m1 in `weight`, under `weight_scale` and `weight_scale_2`.

    - `is_awq`, `input_factor`: of NVFP4_AWQ, whose inputs are multiplied before they are quantized.
    """

    is_awq: bool = False
    input_factor: str | None = None

    @property
    def label(self) -> str:
        return f"{super().label} AWQ" if self.is_awq else super().label

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale", "weight_scale_2")

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        stored, whole = tensors["weight_scale"], tensors["weight_scale_2"].view(1)
        if self.by_kernel("decode", tensors, out, scale=stored, whole=whole, multiplies=True):
            return
        scale = look_up_scales(stored, E4M3.to(out.device) * whole, scratch)
        for rows, q in self.values(tensors, torch.float32, scratch):
            self.scaling.multiply(q, scale, rows, out)

    def whole(self, tensors: Tensors) -> torch.Tensor:
        return tensors["weight_scale_2"].view(1, 1)


@dataclass(frozen=True)
class Int4Awq(Packed):
    """Integers in `weight` [O / 2, I] under `weight_scale` [O, groups].

    - `input_factor`: the suffix of what inputs are multiplied with, None where that went into a norm.
    """

    input_factor: str | None = None

    @property
    def label(self) -> str:
        return f"W4A16 AWQ {self.scaling.label}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    @property
    def codes(self) -> Codes:
        return Codes("int", 8, self.scaling.size)

    @property
    def elements(self) -> Elements:
        return Elements(4, signed=True, layout="pairs")

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32

    def values(
        self, tensors: Tensors, dtype: torch.dtype, scratch: Scratch
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        packed, (rows, columns) = tensors["weight"], self.shape
        for pairs in row_blocks((rows // 2, 2 * columns), packed.device):
            both = packed[pairs]
            q = scratch.get("values", (2 * len(both), columns), dtype, packed.device)
            moved = scratch.get("nibbles", tuple(both.shape), torch.uint8, packed.device)
            # The shift back brings the sign with it.
            torch.bitwise_left_shift(both, 4, out=moved)
            q[0::2].copy_(moved.view(torch.int8).bitwise_right_shift_(4))
            q[1::2].copy_(moved.copy_(both).view(torch.int8).bitwise_right_shift_(4))
            yield slice(2 * pairs.start, 2 * pairs.stop), q


@dataclass(frozen=True)
class Int4Float8Awq(Int4Awq):
    """Int4Awq rounded to float8 under `weight_scale_2`, for products with float8 inputs."""

    @property
    def label(self) -> str:
        return f"W4AFP8 AWQ {self.scaling.label}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale", "weight_scale_2")

    @property
    def codes(self) -> Codes:
        return Codes("float8")

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        whole = self.scales(tensors)
        for rows, q in self._float8(tensors, scratch):
            out[rows].copy_(q.mul_(whole))

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        for rows, q in self._float8(tensors, scratch):
            out[rows].copy_(q)
        return self.scales(tensors)

    def scales(self, tensors: Tensors) -> torch.Tensor:
        return tensors["weight_scale_2"].view(1, 1).float()

    def _float8(self, tensors: Tensors, scratch: Scratch) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their codes float32 [rows, I], valid until the next ones."""
        scale = self.scaling.arranged(tensors["weight_scale"]).float()
        whole = self.scales(tensors)
        for rows, q in self.values(tensors, torch.float32, scratch):
            self.scaling.multiply(q, scale[rows], slice(None), q)
            rounded = scratch.get("rounded", tuple(q.shape), torch.bfloat16, q.device)
            q.copy_(rounded.copy_(q))
            yield rows, round_float(q.div_(whole), 8)
