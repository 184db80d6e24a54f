"""Weights that a GGUF file lays out otherwise than the library has them, put back as they are read."""

from dataclasses import dataclass

import torch

from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.schemes.base import (
    Dense,
    FactoredScheme,
    MinimumScheme,
    Quantizer,
    Scheme,
    Scratch,
    Tensors,
)
from scoremode.schemes.decoding.codes import Codes, Quantized


def permuted(scheme: Scheme, layout: Layout, name: str) -> "Permuted":
    """The scheme `scheme` of the tensor `name`, stored in this layout.

    Raises UnsupportedModel for values that are packed and need more than another order of rows,
    CheckpointError for a shape that can't lie so.
    """
    if layout.less and not isinstance(scheme, Dense):
        raise UnsupportedModel(
            f"{name} is stored in {scheme.label}, plus {layout.less:g}: not supported"
        )
    try:
        layout.shape(tuple(scheme.shape))
    except ValueError as error:
        raise CheckpointError(f"{name}: its shape {error}") from None
    return Permuted(scheme, layout)


@dataclass(frozen=True)
class Permuted:
    """A Scheme `of` tensors whose rows `layout` first brings into the library's order."""

    of: Scheme
    layout: Layout

    @property
    def label(self) -> str:
        return self.of.label

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.of.tensors

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape(tuple(self.of.shape))

    @property
    def inputs(self) -> Quantizer | None:
        return self.of.inputs

    @property
    def codes(self) -> Codes:
        return self._factored.codes

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        own = self._own(tensors)
        if self.layout.less:
            (stored,) = own.values()
            out.copy_(stored.float() - self.layout.less)
        elif self.layout.transposed:
            rows = scratch.get("a layout's", tuple(self.of.shape), out.dtype, out.device)
            self.of.decode(own, rows, scratch)
            out.copy_(rows.T)
        elif isinstance(self.of, Dense):
            out.copy_(own[self.of.name])
        else:
            self.of.decode(own, out, scratch)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        return self._factored.factor(self._own(tensors), out, scratch)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        return self._factored.stored_factors(self._own(tensors), dtype)

    def minimum(self, tensors: Tensors) -> torch.Tensor | None:
        own = self.of
        return own.minimum(self._own(tensors)) if isinstance(own, MinimumScheme) else None

    @property
    def _factored(self) -> FactoredScheme:
        """The format, where inputs are quantized and so the codes asked for."""
        assert isinstance(self.of, FactoredScheme), f"{self.of.label} has no codes apart"
        return self.of

    def _own(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        whole: tuple[str, ...] = getattr(self.of, "whole", ())
        return {s: t if s in whole else _moved(t, self.layout) for s, t in tensors.items()}


def _moved(stored: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The rows of `stored` in the library's order. Bytes are moved as words, an eighth of the elements
    for a GPU's copy, which takes them one by one."""
    if stored.dtype != torch.uint8:
        return layout.apply(stored)
    stored = stored.contiguous()
    wide = next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if stored.shape[-1] % dtype.itemsize == 0 == stored.storage_offset() % dtype.itemsize
    )
    return layout.apply(stored.view(wide)).view(torch.uint8)
