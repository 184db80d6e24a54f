"""Integers in words that lie by output: `qweight`, `qzeros` and `scales`, as AWQ and GPTQ store them.

The effective weight [O, I] is (q - z) · s, the difference and the product each rounded in the dtype of
the scales, float16 as these libraries write them.
Sources: AutoAWQ's `WQLinear_GEMM`; GPTQModel 7.7, `dequantize_weight`.
"""

from dataclasses import dataclass
from typing import Literal

from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import Elements
from scoremode.schemes.packed import Packed

__all__ = ["Qweight"]


@dataclass(frozen=True)
class Qweight(Packed):
    """Integers of `bits` under a scale and a zero point for each group of inputs.

    - `qweight` int32: [words of inputs, O] in the order `columns`, [I, words of outputs] in `outputs`.
    - `qzeros` int32 [groups, words of outputs]; `scales` [groups, O].
    - `g_idx` [I]: the group of each input, read only where `has_g_idx`.
    - `library`: whose format it is.
    - `asymmetric`: whether zero points are read; all are half of the codes' range where not.
    - `less_one`: zero points are stored less one (GPTQ's first format).
    """

    bits: int
    library: str
    order: Literal["columns", "outputs"]
    asymmetric: bool
    has_g_idx: bool = False
    less_one: bool = False

    @property
    def label(self) -> str:
        marks = (" asym" if self.asymmetric else "") + (" g_idx" if self.has_g_idx else "")
        return f"{self.library} W{self.bits}A16 {self.scaling.label}{marks}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return (
            "qweight",
            "scales",
            *(("qzeros",) if self.asymmetric else ()),
            *(("g_idx",) if self.has_g_idx else ()),
        )

    @property
    def scale_name(self) -> str:
        return "scales"

    @property
    def g_idx_name(self) -> str:
        return "g_idx"

    @property
    def codes(self) -> Codes:
        return Codes("int", 1 << self.bits, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return Elements(self.bits, order=self.order, shuffled=self.order == "outputs")

    @property
    def zero_point_name(self) -> str:
        return "qzeros"

    @property
    def zero_offset(self) -> int:
        return 1 if self.less_one else 0
