"""Linears of many experts stored as one, in tensors whose first axis counts the experts.

Such a tensor has no module of its own: it lies in the experts' module under the name of the parameter
that it is, `experts.gate_up_proj`, or that with a suffix, `experts.gate_up_proj_blocks`. MLX has a
module for each linear, and there the parameter is its `weight`.
"""

from dataclasses import dataclass

import torch

from scoremode.schemes.base import Quantizer, RowScheme, Scheme, Scratch, Tensors, Wrapped
from scoremode.schemes.decoding.codes import Quantized


@dataclass(frozen=True)
class Expert(Wrapped):
    """The linear [O, I] of one expert, whose tensors are entries of those that hold all.

    - `of`: the format that such a linear would have alone.
    - `names`: for each of its suffixes, static scales of its input included, the tensor's name in the
      experts' module.
    - `shared`: those of these names that are no expert's own, but one for all.
    - `transposed`: whether the entries, packed along their first axis, are [I, O] matrices.
    """

    names: tuple[tuple[str, str], ...]
    shared: tuple[str, ...] = ()
    transposed: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(self.stored_as(suffix) for suffix in self.of.tensors)

    def stored_as(self, suffix: str) -> str:
        """The name in the experts' module of the tensor that has this suffix in a linear alone."""
        return dict(self.names)[suffix]

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        # A copy of a transposed one would last as long as the layer, beside those of other experts.
        return None if self.transposed else super().stored_factors(tensors, dtype)

    def own(self, tensors: Tensors) -> Tensors:
        """The entries by the suffixes of a linear alone; a row of blocks [O, G, 16] is one of bytes."""
        entries = {suffix: tensors[self.stored_as(suffix)] for suffix in self.of.tensors}
        if self.transposed:
            return {s: t.T.contiguous() if t.dim() == 2 else t for s, t in entries.items()}
        return {s: t.flatten(1) if t.dim() > 2 else t for s, t in entries.items()}


@dataclass(frozen=True)
class Stacked:
    """The linears of `count` experts: [E, O, I], or [E, I, O] where `one` lies transposed.

    - `one`: the Scheme of each.
    - `untransposes`: whether they are [E, O, I] where the library's parameter is [E, I, O], too.
    """

    count: int
    one: Expert
    untransposes: bool = False

    @property
    def label(self) -> str:
        return self.one.label

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.one.tensors

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.one.shape
        return (self.count, *(reversed(shape) if self.one.transposed else shape))

    @property
    def inputs(self) -> Quantizer | None:
        return self.one.inputs

    @property
    def together(self) -> Scheme | None:
        """The format of all experts' rows, one below the other, None where that is none of its own."""
        if self.one.transposed or self.one.shared or not isinstance(self.one.of, RowScheme):
            return None
        return self.one.of.below(self.count)

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        if (together := self.together) is not None:
            own = ((s, tensors[self.one.stored_as(s)].flatten(0, 1)) for s in together.tensors)
            rows = {s: t.flatten(1) if t.dim() > 2 else t for s, t in own}
            together.decode(rows, out.flatten(0, 1), scratch)
            return
        for expert, place in enumerate(out):
            own = {n: t if n in self.one.shared else t[expert] for n, t in tensors.items()}
            if not self.one.transposed:
                self.one.decode(own, place, scratch)
                continue
            linear = scratch.get("an expert's", self.one.shape, out.dtype, out.device)
            self.one.decode(own, linear, scratch)
            place.copy_(linear.T)


def shared_tensors(scheme: Scheme) -> tuple[str, ...]:
    """Names of tensors that are one for all experts, though the others hold an entry for each."""
    expert = scheme.one if isinstance(scheme, Stacked) else scheme
    return expert.shared if isinstance(expert, Expert) else ()


def input_tensors(scheme: Scheme) -> dict[str, str]:
    """Static scales of the input: the suffix that a linear alone has for each → the tensor's."""
    suffixes = scheme.inputs.tensors if scheme.inputs else ()
    expert = scheme.one if isinstance(scheme, Stacked) else scheme
    if isinstance(expert, Expert):
        return {suffix: expert.stored_as(suffix) for suffix in suffixes}
    return {suffix: suffix for suffix in suffixes}
