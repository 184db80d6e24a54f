"""A linear's input as llama.cpp's CPU build rounds it before it multiplies: by the weight's type.

Types in blocks meet an input in blocks of int8: Q8_0 and Q8_1 of 32 values, Q8_K of 256. A matrix in
float16 or bfloat16 has its input rounded to the same. The steps are those of the build for x86 from
AVX on, float32 each: an inverse scale, 127 over the largest magnitude, times the value, rounded half to
even, under a scale that Q8_0 and Q8_1 hold in float16. Its scalar code, and ARM's, round the inverse
twice (1 over a scale that is rounded), and the scalar one halves away from zero.
Between the linears of a gated layer that build looks its GELU up in a table of float16.
Source: llama.cpp 0c1e57098 and llama-cpp-python 0.3.36's, ggml-cpu, `quantize_row_q8_0`,
`quantize_row_q8_1`, `quantize_row_q8_K`, `ggml_vec_geglu_f32`, `ggml_vec_gelu_f32`.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import Tensors, row_blocks

Kind = Literal["Q8_0", "Q8_1", "Q8_K", "F16", "BF16"]

_VALUES = {"Q8_0": 32, "Q8_1": 32, "Q8_K": 256}
_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class GgmlInputs:
    """The format in which one linear's input is rounded, by the `kind` of its blocks or floats.

    - `summed`: columns whose codes' sum a minimum of the weight is multiplied with; None for weights
      without.

    No checkpoint holds or declares anything of it.
    """

    kind: Kind
    summed: int | None = None

    tensors: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    declared: bool = False
    spans_window: bool = False
    by_window: str = ""

    @property
    def label(self) -> str:
        return self.kind

    @property
    def codes(self) -> Codes:
        if self.kind in _VALUES:
            return Codes("int", 127, _VALUES[self.kind])
        return Codes("float16" if self.kind == "F16" else "float")

    def quantize(
        self, x: torch.Tensor, tensors: Tensors, dtype: torch.dtype = torch.float32
    ) -> Quantized:
        """Codes, scales and sums of `x` float [..., I], rows flattened to [N, I].

        `dtype`: of the codes, one that holds them exactly. What no code can say, the scale does: it is
        NaN or infinite then.
        """
        rows = x.reshape(-1, x.shape[-1])
        if self.kind in _FLOATS:
            return Quantized(rows.to(_FLOATS[self.kind]).to(dtype), rows.new_ones(1, 1).float())
        count, columns = rows.shape
        codes = torch.empty(rows.shape, dtype=dtype, device=x.device)
        scale = torch.empty(count, columns // _VALUES[self.kind], device=x.device)
        sums = None
        if self.summed:
            sums = torch.empty(count, columns // self.summed, device=x.device)
        # A block of rows at a time: it stays in a core's cache over all steps.
        for block in row_blocks((count, columns), x.device):
            values = rows[block].float()
            into = None if sums is None else sums[block]
            codes[block].copy_(self._quantize_rows(values, scale[block], into))
        return Quantized(codes, scale, sums=sums)

    def _quantize_rows(
        self, x: torch.Tensor, scale: torch.Tensor, sums: torch.Tensor | None
    ) -> torch.Tensor:
        """Fills `scale` and `sums`; the codes float32 [n, I] of `x` float32 [n, I]."""
        grouped = x.unflatten(1, (-1, _VALUES[self.kind]))
        if self.kind == "Q8_K":
            # The first value of the largest magnitude becomes −127.
            place = grouped.abs().argmax(2, keepdim=True)
            largest = grouped.gather(2, place).squeeze(2)
            inverse = _inverse(largest, -127)
            exact = torch.where(inverse == 0, largest, _over(1, inverse))
        else:
            largest = grouped.abs().amax(2)
            inverse = _inverse(largest, 127)
            exact = largest / torch.full_like(largest, 127)
        codes = (grouped * inverse.unsqueeze(2)).round_()
        scale.copy_(exact if self.kind == "Q8_K" else exact.half())
        if sums is not None:
            each = codes.view(len(x), scale.shape[1], -1, self.summed or 1).sum(3)
            if self.kind == "Q8_1":
                # By the scale before it is rounded, and rounded itself.
                sums.copy_((exact.unsqueeze(2) * each).half().flatten(1))
            else:
                sums.copy_((scale.unsqueeze(2) * each).flatten(1))
        return codes.view(x.shape)


def gelu(input: torch.Tensor) -> torch.Tensor:
    """GELU by its tanh formula as llama.cpp's table has it: of a float16 input, rounded to float16.

    `input`: float32, any shape. Inputs of -10 and less give 0, of 10 and more themselves, unrounded.
    """
    half = input.half().float()
    # Where 1 + tanh is nearly nothing their order shows, and so does a last bit of tanh: glibc's is
    # correctly rounded, torch's isn't.
    inner = 0.79788456080286535588 * half * (1 + 0.044715 * half * half)
    table = (0.5 * half * (1 + inner.double().tanh().float())).half().float()
    return torch.where(input <= -10, 0.0, torch.where(input >= 10, input, table))


def _inverse(largest: torch.Tensor, number: int) -> torch.Tensor:
    """`number` over `largest`, zero where that is infinite: of values so small nothing is left."""
    inverse = _over(number, largest)
    return torch.where(inverse.isinf(), 0, inverse)


def _over(number: int, values: torch.Tensor) -> torch.Tensor:
    """`number / values`, rounded once: of a number over a tensor torch makes an inverse times it."""
    return torch.full_like(values, number) / values
