"""AutoAWQ's layout `gemv`: a row of words for each output, its zero points packed along its groups.

The effective weight is (q - z) · s, rounded in float16, as its kernel for more than eight tokens has
it; the other one multiplies in float32.
Source: AutoAWQ 0.2.9, `WQLinear_GEMV`; its kernels' `gemmv2_forward_4bit_cuda_m128n64k32`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import Elements, unpack_integers
from scoremode.schemes.foreseen import Foreseen, Linear
from scoremode.schemes.packed import Packed
from scoremode.schemes.qweight.stored import Declared, Stored

__all__ = ["SIZES", "Gemv", "foreseen_gemv", "stored_gemv", "zero_words"]

# Words of zero points come in multiples of as many, by the size of groups; one from 128 on.
SIZES = {32: 4, 64: 2}


@dataclass(frozen=True)
class Gemv(Packed):
    """Integers of 4 bits under a scale and a zero point for each group of an output's inputs.

    - `qweight` int32 [O, I / 8]; `qzeros` int32 [O, words], eight groups to each; `scales`
      [O, 8 · words]. These two have more places than there are groups.
    """

    @property
    def label(self) -> str:
        return f"AWQ W4A16 {self.scaling.label} asym"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("qweight", "scales", "qzeros")

    @property
    def scale_name(self) -> str:
        return "scales"

    @property
    def zero_point_name(self) -> str:
        return "qzeros"

    @property
    def codes(self) -> Codes:
        return Codes("int", 15, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return Elements(4)

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        super().decode(self._of_groups(tensors, scratch), out, scratch)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        return super().factor(self._of_groups(tensors, scratch), out, scratch)

    def _of_groups(
        self, tensors: Mapping[str, torch.Tensor], scratch: Scratch
    ) -> dict[str, torch.Tensor]:
        """The tensors, of which scales and zero points are [O, groups], these int8."""
        groups = self.scaling.stored_shape[1]
        # A copy, since the integers are scratch.
        zero_points = unpack_integers(tensors["qzeros"], self.elements, groups, scratch).clone()
        scales = tensors["scales"][:, :groups].contiguous()
        return {"qweight": tensors["qweight"], "scales": scales, "qzeros": zero_points}


def stored_gemv(stored: Stored, declared: Declared) -> Gemv:
    """The Scheme of a module. Raises CheckpointError."""
    rows, width = stored.matrix("qweight", ("I32",))
    columns = 8 * width
    size = declared.size(columns)
    if columns % size:
        raise stored.wrong(f"{columns} inputs are no whole number of groups of {size}")
    words = zero_words(columns, size)
    stored.expect("qzeros", ("I32",), [(rows, words)])
    stored.expect("scales", ("F16",), [(rows, 8 * words)])
    if declared.symmetric and not _are_eight(stored, columns // size):
        raise stored.wrong("zero_point is false, and its zero points are not all 8")
    return Gemv(stored.scaling((rows, columns), declared))


def foreseen_gemv(linear: Linear, declared: Declared) -> dict[str, Foreseen] | None:
    """The tensors of a linear that is stored so, all zero points 8; None where its inputs are no whole
    number of words and groups."""
    rows, columns = linear.shape
    size = declared.size(columns)
    if columns % 8 or columns % size:
        return None
    words = zero_words(columns, size)
    return {
        "qweight": Foreseen("I32", (rows, columns // 8)),
        "qzeros": Foreseen("I32", (rows, words), b"\x88"),
        "scales": Foreseen("F16", (rows, 8 * words)),
    }


def zero_words(columns: int, size: int) -> int:
    """How many words an output's zero points take, eight groups to each."""
    multiple = SIZES.get(size, 1)
    return -(-columns // size // (8 * multiple)) * multiple


def _are_eight(stored: Stored, groups: int) -> bool:
    info = stored.tensors["qzeros"]
    words = np.frombuffer(stored.checkpoint.read_bytes(info.name), "<u4").reshape(info.shape)
    codes = words[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    return bool((codes.reshape(len(words), -1)[:, :groups] == 8).all())
