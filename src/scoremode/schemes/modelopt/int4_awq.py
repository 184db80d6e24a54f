"""ModelOpt's AWQ: integers of 4 bits, two rows a byte, under scales of groups of a row's columns.

Row 2i of a byte is in its low nibble, row 2i + 1 in the high one, both in two's complement. The
effective weight is code times scale in float32, rounded to the dtype that is computed in, as ModelOpt's
quantizer simulates it: its export has no dequantizer. Inputs are multiplied by `pre_quant_scale`, where
there is one, in the dtype that is computed in, as ModelOpt's own quantizers do it and the kernels that
run such files: multiplied into the weight it would round each of its elements once more.

Of W4A8_AWQ what is multiplied is a float8: of code times scale, rounded to bfloat16 as in a model of
that dtype, over `weight_scale_2`.
Source: ModelOpt 0.47, `pack_int4_in_uint8`, `fake_quant_impl`, `fp8_eager`, `TensorQuantizer.forward`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.rounding import round_float
from scoremode.schemes.decoding.unpack import Elements, row_blocks
from scoremode.schemes.packed import Packed

__all__ = ["Int4Awq", "Int4Float8Awq"]


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
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, scratch: Scratch
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
    """The same rounded to float8 under `weight_scale_2`, for products with float8 inputs."""

    @property
    def label(self) -> str:
        return f"W4AFP8 AWQ {self.scaling.label}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale", "weight_scale_2")

    @property
    def codes(self) -> Codes:
        return Codes("float8")

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        whole = self.scales(tensors)
        for rows, q in self._float8(tensors, scratch):
            out[rows].copy_(q.mul_(whole))

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        for rows, q in self._float8(tensors, scratch):
            out[rows].copy_(q)
        return self.scales(tensors)

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return tensors["weight_scale_2"].view(1, 1).float()

    def _float8(
        self, tensors: Mapping[str, torch.Tensor], scratch: Scratch
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their codes float32 [rows, I], valid until the next ones."""
        scale = self.scaling.arranged(tensors["weight_scale"]).float()
        whole = self.scales(tensors)
        for rows, q in self.values(tensors, torch.float32, scratch):
            self.scaling.multiply(q, scale[rows], slice(None), q)
            rounded = scratch.get("rounded", tuple(q.shape), torch.bfloat16, q.device)
            q.copy_(rounded.copy_(q))
            yield rows, round_float(q.div_(whole), 8)
