"""AutoAWQ's layout `gemv_fast`, llm-awq's own: words of 16 bits, four outputs' side by side.

The effective weight is q · s + z in float16, rounded once, as its kernels have it: zero points are
stored times the scale and negated. Here it is a product and a sum in float32, both exact where a zero
point is a code's multiple of the scale.
Source: AutoAWQ 0.2.9, `WQLinear_GEMVFast`, `pack_intweight`; its kernels' `dequantize_s4_to_fp16x2` and
`__hfma2` after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import Elements, look_up, row_blocks
from scoremode.schemes.foreseen import Foreseen, Linear
from scoremode.schemes.qweight.gemv import zero_words
from scoremode.schemes.qweight.stored import Declared, Stored

__all__ = ["GemvFast", "foreseen_gemv_fast", "stored_gemv_fast"]


@dataclass(frozen=True)
class GemvFast:
    """Integers of 4 bits in groups of `size` inputs.

    - `qweight` int16 [O / 4, I]: for every 64 inputs 16 words of each of four outputs. Eight words are
      32 inputs, and the b-th code of the j-th is input 8 b + j.
    - `scales`, `qzeros` float16 [places, O]: more places than there are groups.
    """

    shape: tuple[int, int]
    size: int

    @property
    def label(self) -> str:
        return f"AWQ W4A16 g{self.size} asym"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("qweight", "scales", "qzeros")

    @property
    def inputs(self) -> None:
        return None

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        packed, groups = tensors["qweight"].contiguous(), self.shape[1] // self.size
        scale, zero = (tensors[name][:groups].contiguous() for name in ("scales", "qzeros"))

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.qweight import kernels

            kernels.decode(out, packed, scale, zero, self.size)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        scale, zero = (t.T.float().unsqueeze(2) for t in (scale, zero))
        for rows in row_blocks(self.shape, out.device, 4):
            q = self._codes(packed[rows.start // 4 : rows.stop // 4], scratch)
            q.unflatten(1, (-1, self.size)).mul_(scale[rows]).add_(zero[rows])
            rounded = scratch.get("rounded", tuple(q.shape), torch.float16, q.device)
            out[rows].copy_(q.copy_(rounded.copy_(q)))

    def _codes(self, packed: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """float32 [4 n, I] from 0 on, of [n, I] words, valid until the next call."""
        shape = 4 * len(packed), self.shape[1]
        words = scratch.get("words", (shape[0], shape[1] // 4), packed.dtype, packed.device)
        by_row = packed.unflatten(1, (-1, 4, 16)).transpose(1, 2)
        words.view(by_row.shape).copy_(by_row)
        found = look_up(words.view(torch.uint8), Elements(4), torch.float32, scratch)
        q = scratch.get("values", shape, torch.float32, packed.device)
        q.unflatten(1, (-1, 4, 8)).copy_(found.unflatten(1, (-1, 8, 4)).transpose(2, 3))
        return q.add_(8)


def stored_gemv_fast(stored: Stored, declared: Declared) -> GemvFast:
    """The Scheme of a module. Raises CheckpointError."""
    height, columns = stored.matrix("qweight", ("I16",))
    size = declared.size(columns)
    if columns % 64 or columns % size:
        raise stored.wrong(f"{columns} inputs are no whole number of 64 or of groups of {size}")
    places = [(8 * zero_words(columns, size), 4 * height)]
    for name in ("scales", "qzeros"):
        stored.expect(name, ("F16",), places)
    return GemvFast((4 * height, columns), size)


def foreseen_gemv_fast(linear: Linear, declared: Declared) -> dict[str, Foreseen] | None:
    """The tensors of a linear that is stored so; None where it fills no whole words and groups."""
    rows, columns = linear.shape
    size = declared.size(columns)
    if rows % 4 or columns % 64 or columns % size:
        return None
    places = 8 * zero_words(columns, size), rows
    return {
        "qweight": Foreseen("I16", (rows // 4, columns)),
        "scales": Foreseen("F16", places),
        "qzeros": Foreseen("F16", places),
    }
