"""Formats of a GGUF file's weights whose inputs are rounded as llama.cpp's CPU build rounds them.

The weight's type says how (ggml-cpu's `type_traits_cpu`, `vec_dot_type`): blocks of 256 values meet
Q8_K; blocks of 32 and NVFP4's of 64 meet Q8_0, or Q8_1 where they have a minimum; float16 and bfloat16
meet themselves, and float32 its input as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from scoremode.errors import UnsupportedModel
from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.base import Scheme, Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.dense import Dense
from scoremode.schemes.gguf.blocks import Blocks
from scoremode.schemes.gguf.relaid import Relaid
from scoremode.schemes.gguf.scaled import Scaled
from scoremode.schemes.stacked import Expert, Stacked

__all__ = ["RoundedDense", "with_inputs"]


def with_inputs(scheme: Scheme) -> Scheme:
    """The format with its input's; the same where llama.cpp takes the input as it is."""
    match scheme:
        case Blocks():
            return replace(scheme, inputs=_inputs_of(scheme))
        case Stacked():
            return replace(scheme, one=with_inputs(scheme.one))
        case Scaled():
            return replace(scheme, of=replace(scheme.of, inputs=_inputs_of(scheme.of)))
        case Expert() | Relaid():
            return replace(scheme, of=with_inputs(scheme.of))
        case Dense(dtype="F16" | "BF16"):
            return RoundedDense(scheme.shape, scheme.dtype, scheme.name)
        case Dense():
            return scheme
        case _:
            raise UnsupportedModel(
                f"{scheme.label}: how llama.cpp rounds its inputs is not known; --arithmetic weights "
                "measures it without"
            )


def _inputs_of(blocks: Blocks) -> GgmlInputs:
    kind = blocks.block_type
    summed = kind.group if kind.has_minimum else None
    if kind.values == 256:
        return GgmlInputs("Q8_K", summed)
    return GgmlInputs("Q8_0") if summed is None else GgmlInputs("Q8_1", summed)


@dataclass(frozen=True)
class RoundedDense(Dense):
    """A matrix in float16 or bfloat16 whose inputs are rounded to the same."""

    @property
    def inputs(self) -> GgmlInputs:
        return GgmlInputs("F16" if self.dtype == "F16" else "BF16")

    @property
    def codes(self) -> Codes:
        return self.inputs.codes

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        self.decode(tensors, out, scratch)
        return torch.ones(1, 1, device=out.device)

    def stored_factors(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Quantized | None:
        stored = tensors[self.name]
        if stored.dtype != dtype:
            return None
        return Quantized(stored, torch.ones(1, 1, device=stored.device))
