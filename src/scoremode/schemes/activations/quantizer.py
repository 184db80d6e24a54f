"""The protocol of what rounds a linear's input."""

from collections.abc import Mapping
from typing import Protocol

import torch

from scoremode.schemes.decoding.codes import Codes, Quantized

__all__ = ["Quantizer"]


class Quantizer(Protocol):
    """The format of one linear's input; equal to another that makes the same codes of the same input.

    - `label`: such as `int8 token`, `Q8_K`.
    - `tensors`: suffixes of the static scales and zero points that the checkpoint holds for it;
      `scales`: those that are not of zero points.
    - `declared`: whether the checkpoint says it. What it doesn't, some kernels for its weights do.
    - `spans_window`: whether all tokens of a window share what is made of them, and `by_window` what
      that is, in a sentence.
    - `codes`: what they are.
    """

    @property
    def label(self) -> str: ...
    @property
    def tensors(self) -> tuple[str, ...]: ...
    @property
    def scales(self) -> tuple[str, ...]: ...
    @property
    def declared(self) -> bool: ...
    @property
    def spans_window(self) -> bool: ...
    @property
    def by_window(self) -> str: ...
    @property
    def codes(self) -> Codes: ...

    def quantize(
        self,
        x: torch.Tensor,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype = torch.float32,
    ) -> Quantized:
        """Codes and scales of `x` float [..., I], rows flattened to [N, I]; `dtype`: of the codes."""
        ...
