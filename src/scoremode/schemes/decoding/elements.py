"""What a stored code is, for the one CUDA kernel that decodes every format; and the call of it."""

from dataclasses import dataclass
from typing import Literal

import torch

from scoremode import fallback
from scoremode.schemes.decoding.scaling import Scaling

__all__ = ["FLOATS", "SIGNED_BYTES", "Elements", "decode"]


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


def decode(
    name: str,
    out: torch.Tensor,
    packed: torch.Tensor,
    elements: Elements,
    scaling: Scaling,
    *,
    scale: torch.Tensor | None = None,
    whole: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    rounding: torch.dtype = torch.float32,
) -> bool:
    """Whether the CUDA kernel, called `name` in the record, filled `out` as `kernels.decode` says.

    Where it did not, nothing was written, and the scheme's plain torch has to.
    """

    def run() -> None:
        # Imports Triton, which need not be there.
        from scoremode.schemes.decoding import kernels

        kernels.decode(
            out,
            packed,
            elements,
            scaling,
            scale=scale,
            whole=whole,
            zero_point=zero_point,
            g_idx=g_idx,
            rounding=rounding,
        )

    return fallback.attempt(name, out.device, run)
