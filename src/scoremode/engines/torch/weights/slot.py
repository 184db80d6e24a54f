"""The Slot: memory for one decoder layer, which every layer is decoded into in turn."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from scoremode.engines.torch.matmul.linears import QuantizedMatmul
from scoremode.engines.torch.weights.sources import Filling
from scoremode.schemes.base import FactoredScheme, Scheme, Scratch
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.dense import Dense

__all__ = ["Fetch", "Slot"]

# A tensor by name, on the device; with an index only that entry of its first axis.
Fetch = Callable[[str, int | None], torch.Tensor]


class Slot:
    """One dense decoder layer's worth of memory, filled with each layer in turn.

    Buffers are kept by role and shape, so layers that look alike share them, whatever their formats
    and dtypes. A dense tensor that is already in the wanted dtype and place is used where it lies.
    """

    def __init__(self, device: torch.device, fetch: Fetch):
        self.device = device
        self._fetch = fetch
        self._scratch = Scratch()
        self._buffers: dict[tuple[str, tuple[int, ...], int], torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        """Bytes of the buffers held."""
        return sum(b.nbytes for b in self._buffers.values())

    def fill(self, fillings: Iterable[Filling]) -> None:
        """Decodes the fillings and points their modules' parameters at the result."""
        for filling in fillings:
            if filling.matmul is not None:
                self.load(filling)
                continue
            weight = self.dense(filling)
            filling.module._parameters[filling.name] = nn.Parameter(weight, requires_grad=False)

    def empty(self, fillings: Iterable[Filling]) -> None:
        """Takes the parameters away again, so that nothing runs on another layer's weights."""
        for filling in fillings:
            if filling.matmul is not None:
                filling.matmul.unload()
                continue
            shape = tuple(filling.scheme.shape)
            meta = torch.empty(shape, dtype=filling.dtype, device="meta")
            filling.module._parameters[filling.name] = nn.Parameter(meta, requires_grad=False)

    def kept(self, filling: Filling) -> torch.Tensor:
        """The weight for good: as it is stored if dense, else decoded into memory of its own."""
        if isinstance(filling.scheme, Dense):
            (name,) = filling.tensor_names().values()
            return self._fetch(name, None)
        return self.own(filling)

    def own(self, filling: Filling) -> torch.Tensor:
        """The effective weight in memory of its own, which no later filling touches."""
        out = torch.empty(tuple(filling.scheme.shape), dtype=filling.dtype, device=self.device)
        filling.scheme.decode(self._tensors(filling), out, self._scratch)
        return out

    def dense(self, filling: Filling, place: int = 0) -> torch.Tensor:
        """The effective weight, valid until a filling of the same role and shape is decoded in the
        same `place`."""
        tensors = self._tensors(filling)
        if isinstance(filling.scheme, Dense):
            (tensor,) = tensors.values()
            if tensor.dtype == filling.dtype and tensor.device == self.device:
                return tensor
        out = self._buffer(filling.role, filling.scheme, filling.dtype, place)
        filling.scheme.decode(tensors, out, self._scratch)
        return out

    def load(self, filling: Filling, place: int = 0) -> QuantizedMatmul:
        """Gives the filling's matmul its codes and scales, valid as long as `dense` would be."""
        matmul = filling.matmul
        assert matmul is not None
        scheme, dtype = matmul.scheme, matmul.product.dtype
        tensors = self._tensors(filling)
        weight = scheme.stored_factors(tensors, dtype)
        if weight is None:
            out = self._buffer(f"{filling.role} codes", scheme, dtype, place)
            weight = Quantized(out, scheme.factor(tensors, out, self._scratch))
        matmul.load(weight, self._static(filling, scheme), self._scratch)
        return matmul

    def factored(self, filling: Filling) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """The weight for good, float32 and multiplied out exactly, with the static scales of its
        input."""
        scheme = filling.scheme
        assert isinstance(scheme, FactoredScheme)
        out = torch.empty(tuple(scheme.shape), device=self.device)
        scale = scheme.factor(self._tensors(filling), out, self._scratch)
        static = self._static(filling, scheme)
        return Quantized(out, scale).dense(scheme.codes.group), static

    def _static(self, filling: Filling, scheme: FactoredScheme) -> dict[str, torch.Tensor]:
        """The static scales of the filling's input, by suffix."""
        assert scheme.inputs is not None
        return {s: self._fetch(f"{filling.source}.{s}", None) for s in scheme.inputs.tensors}

    def _tensors(self, filling: Filling) -> dict[str, torch.Tensor]:
        """Tensors that the filling's scheme reads, by suffix."""
        names = filling.tensor_names()
        return {s: self._fetch(name, filling.index) for s, name in names.items()}

    def _buffer(self, role: str, scheme: Scheme, dtype: torch.dtype, place: int) -> torch.Tensor:
        shape = tuple(scheme.shape)
        key, size = (role, shape, place), math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._buffers[key] = buffer
        return buffer[:size].view(dtype).view(shape)

    def bytes_for(self, fillings: Iterable[Filling]) -> int:
        """Memory that all of these take, one after the other: those of a role and shape share it."""
        sizes: dict[tuple[str, bool, tuple[int, ...]], int] = {}
        for filling in fillings:
            key = filling.role, filling.matmul is not None, tuple(filling.scheme.shape)
            sizes[key] = max(sizes.get(key, 0), self.bytes_of(filling))
        return sum(sizes.values())

    def bytes_of(self, filling: Filling) -> int:
        """Memory that a place for the filling takes: none where it is used as it is stored."""
        scheme, matmul = filling.scheme, filling.matmul
        dtype = filling.dtype if matmul is None else matmul.product.dtype
        if isinstance(scheme, Dense) and scheme.is_stored_as(dtype):
            return 0
        return math.prod(scheme.shape) * dtype.itemsize
