"""Bindings of parameters to what they are made of: tensors of a checkpoint, decoded by a Scheme."""

from dataclasses import dataclass

import torch
from torch import nn

from scoremode.engines.torch.matmul.linears import InputFactor, QuantizedMatmul
from scoremode.schemes.base import Scheme, input_factor
from scoremode.schemes.fused_experts import input_tensors

__all__ = ["Binding", "Source"]


@dataclass(frozen=True)
class Source:
    """A checkpoint's module and the Scheme that decodes its tensors; of experts stored as one the
    module around their parameter."""

    module: str
    scheme: Scheme

    def tensor_names(self) -> dict[str, str]:
        """Suffix → checkpoint name."""
        return {s: self._full(s) for s in self.scheme.tensors}

    def input_names(self) -> dict[str, str]:
        """Suffix, as a linear alone has it → checkpoint name, of the static scales of its input."""
        return {s: self._full(name) for s, name in input_tensors(self.scheme).items()}

    def _full(self, suffix: str) -> str:
        return f"{self.module}.{suffix}" if self.module else suffix


@dataclass(frozen=True)
class Binding:
    """One parameter bound to what it is made of: `scheme` decodes the tensors of checkpoint module
    `source` into parameter `name` of `module`.

    - `role`: its name within its layer; what has one role and shape shares memory in the Slot.
    - `dtype`: what the parameter is kept in, which for a few is not the compute dtype.
    - `index`: only this entry of the tensors' first axis, one expert's; the scheme's shape is then
      that of an entry.
    - `matmul`: what computes with codes instead, where the input is quantized too; the parameter
      then stays without data.
    - `factor`: what multiplies the input first, None for nearly all.
    """

    module: nn.Module
    name: str
    role: str
    source: str
    scheme: Scheme
    dtype: torch.dtype
    index: int | None = None
    matmul: QuantizedMatmul | None = None
    factor: InputFactor | None = None

    def tensor_names(self) -> dict[str, str]:
        """Suffix → checkpoint name."""
        return Source(self.source, self.scheme).tensor_names()

    def input_names(self) -> dict[str, str]:
        """Suffix → checkpoint name, of the static scales of its input."""
        return Source(self.source, self.scheme).input_names()

    def factor_name(self) -> str:
        """The checkpoint's name of the input's factors."""
        return f"{self.source}.{input_factor(self.scheme)}"

    def all_tensor_names(self) -> list[str]:
        """Names of the weight's tensors, and of its input's: static scales where it is quantized,
        factors."""
        names = [*self.tensor_names().values(), *self.input_names().values()]
        return names if self.factor is None else [*names, self.factor_name()]
