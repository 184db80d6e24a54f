"""Protocols of a quantization format: names of tensors, and decoders into given buffers.

A `Scheme` is one linear's format with everything known that its headers tell. It owns no weights:
its decoders get the packed tensors, wherever they lie, and fill a buffer in place. Decoding reuses
scratch memory, since allocating for every layer costs several times the decoding itself.

A weight has two readings. The *effective weight* is one dense matrix, rounded as weight-only kernels
round it. *Factors* are the stored codes and their scales, apart: where activations are quantized too,
products are of codes, and scales are applied to the products.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import Scratch, Tensors


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
        self, x: torch.Tensor, tensors: Tensors, dtype: torch.dtype = torch.float32
    ) -> Quantized:
        """Codes and scales of `x` float [..., I], rows flattened to [N, I]; `dtype`: of the codes."""
        ...


class Scheme(Protocol):
    """The format of one module.

    - `label`: what people call it, such as `W4A16 g128`.
    - `tensors`: the suffixes of the checkpoint's tensors that it reads (`weight_packed`, …).
    - `shape`: out × in of the dense weight.
    - `inputs`: how the checkpoint has the linear's input quantized, None if it says nothing, unless
      kernels for its weights do it all the same.
    """

    @property
    def label(self) -> str: ...
    @property
    def tensors(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def inputs(self) -> Quantizer | None: ...

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        """Fills `out` [O, I], of any float dtype, with the effective weight.

        `tensors` are those of `self.tensors` by suffix, on the device of `out`.
        """
        ...


def input_factor(scheme: Scheme) -> str | None:
    """The suffix of the factors [I] that a linear's input is multiplied with before all else.

    AWQ's, where they could not go into the norm before the linear: without them its weight means
    nothing. None for formats that have none, and for a linear whose input is what it gets.
    """
    return getattr(scheme, "input_factor", None)


def fitted(scheme: Scheme, shape: tuple[int, ...]) -> Scheme:
    """The scheme for a model whose weight has this shape, where the format pads what it stores.

    The scheme itself for all that pad nothing, and where the padding is not what the shape asks for.
    """
    cut = getattr(scheme, "fitted", None)
    return scheme if cut is None else cut(shape)


@runtime_checkable
class RowScheme(Scheme, Protocol):
    """A format whose rows know nothing of each other."""

    def below(self, count: int) -> Scheme | None:
        """The format of `count` such weights one below the other, None where that isn't the same."""
        ...


@runtime_checkable
class TableScheme(Scheme, Protocol):
    """A format of matrices any of whose rows can be decoded alone, from their rows of all tensors."""

    def of_rows(self, count: int) -> Scheme:
        """The format of so many rows."""
        ...


@runtime_checkable
class FactoredScheme(Scheme, Protocol):
    """A format whose modules may have quantized inputs."""

    @property
    def codes(self) -> Codes: ...

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """Fills `out` [O, I] with codes, each exact in its dtype; returns the scales.

        Scales are float32 [O or 1, ceil(I / codes.group)]: weight [o, i] is code times scale.
        """
        ...

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        """Returns what `factor` would give in `dtype`, with the codes where they are stored; None where
        they are stored in another way.

        They are valid as long as the tensors are.
        """
        ...


@runtime_checkable
class ColumnScheme(FactoredScheme, Protocol):
    """A format some of whose columns are multiplied with inputs that are not quantized (LLM.int8)."""

    def columns(self, tensors: Tensors, columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The effective weight's `columns` int64 [n], rounded to `dtype`: [O, n]."""
        ...


@runtime_checkable
class MinimumScheme(FactoredScheme, Protocol):
    """A format that may add a minimum to code times scale (some of ggml's)."""

    def minimum(self, tensors: Tensors) -> torch.Tensor | None:
        """float32 [O, I / codes.group]: what is added to each of a group's values; None for nothing."""
        ...


def factors_of(
    scheme: FactoredScheme, tensors: Tensors, out: torch.Tensor, scratch: Scratch
) -> Quantized:
    """Fills `out` [O, I] with a weight's codes, each exact in its dtype; the weight as those and all
    that belongs to them."""
    scale = scheme.factor(tensors, out, scratch)
    minimum = scheme.minimum(tensors) if isinstance(scheme, MinimumScheme) else None
    return Quantized(out, scale, minimum=minimum)


@dataclass(frozen=True)
class Wrapped(ABC):
    """A Scheme `of` another, whose tensors are found or lie otherwise."""

    of: Scheme

    @abstractmethod
    def own(self, tensors: Tensors) -> Tensors:
        """The tensors as `of` has them."""

    @property
    def label(self) -> str:
        return self.of.label

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.of.tensors

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape

    @property
    def inputs(self) -> Quantizer | None:
        return self.of.inputs

    @property
    def codes(self) -> Codes:
        return self._factored.codes

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        self.of.decode(self.own(tensors), out, scratch)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        return self._factored.factor(self.own(tensors), out, scratch)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        return self._factored.stored_factors(self.own(tensors), dtype)

    def minimum(self, tensors: Tensors) -> torch.Tensor | None:
        return self.of.minimum(self.own(tensors)) if isinstance(self.of, MinimumScheme) else None

    @property
    def _factored(self) -> FactoredScheme:
        """The format, where inputs are quantized and so the codes asked for."""
        assert isinstance(self.of, FactoredScheme), f"{self.label} has no codes apart"
        return self.of


@dataclass(frozen=True)
class Dense:
    """A float tensor; `name` is its last name component (`weight`, `bias`, …)."""

    shape: tuple[int, ...]
    dtype: str
    name: str = "weight"

    @property
    def label(self) -> str:
        return self.dtype.lower()

    @property
    def inputs(self) -> Quantizer | None:
        return None

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.name,)

    def is_stored_as(self, dtype: torch.dtype) -> bool:
        return _DTYPES[self.dtype] == dtype

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        out.copy_(tensors[self.name])


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
