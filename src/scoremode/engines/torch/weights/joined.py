"""Parameters that a checkpoint stores in parts: linears that the model has as one, each on its own."""

from collections.abc import Mapping, Sequence

import torch

from scoremode.engines.torch.weights.sources import Source
from scoremode.schemes.base import Scratch

__all__ = ["Joined"]


class Joined:
    """A Scheme whose outputs are those of its parts, one after the other.

    Its tensors are those of its `parts`, under their full names. Inputs of parts are not quantized.
    """

    inputs = None

    def __init__(self, parts: Sequence[Source]):
        assert not any(part.scheme.inputs for part in parts)
        self.parts = tuple(parts)
        self.label = " + ".join(sorted({part.scheme.label for part in parts}))
        self.tensors = tuple(name for part in parts for name in part.tensor_names().values())
        rows = sum(part.scheme.shape[0] for part in parts)
        self.shape = (rows, *parts[0].scheme.shape[1:])

    def __str__(self) -> str:
        return " and ".join(part.module for part in self.parts)

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        begin = 0
        for part in self.parts:
            own = {suffix: tensors[name] for suffix, name in part.tensor_names().items()}
            end = begin + part.scheme.shape[0]
            part.scheme.decode(own, out[begin:end], scratch)
            begin = end
