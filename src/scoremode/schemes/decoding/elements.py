"""The bits of a stored code, for the one CUDA kernel that decodes every format."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["FLOATS", "SIGNED_BYTES", "Elements"]


@dataclass(frozen=True)
class Elements:
    """Codes of `bits`, a row's from its lowest bits on.

    - `mantissa`, `bias`: of small floats, sign in the top bit. With no mantissa codes are integers.
    - `signed`: two's complement; other integers are stored plus 2^(bits-1).
    - `layout`: `dense` codes run on over words, `padded` ones don't cross a 32-bit word's end.
    """

    bits: int
    mantissa: int = 0
    bias: int = 0
    signed: bool = False
    layout: Literal["dense", "padded"] = "dense"


SIGNED_BYTES = Elements(8, signed=True)
# e2m1, e2m3 and e4m3 by their bits.
FLOATS = {4: Elements(4, 1, 1), 6: Elements(6, 3, 1), 8: Elements(8, 3, 7)}
