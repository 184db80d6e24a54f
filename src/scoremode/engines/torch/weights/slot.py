"""The Slot: memory for one decoder layer, which every layer is decoded into in turn."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from scoremode.engines.torch.matmul.linears import QuantizedMatmul
from scoremode.engines.torch.weights.sources import Binding
from scoremode.schemes.base import Dense, FactoredScheme, Scheme, Scratch, factors_of
from scoremode.schemes.fused_experts import shared_tensors

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

    def fill(self, bindings: Iterable[Binding]) -> None:
        """Decodes what the parameters are bound to, and points them at the result."""
        for binding in bindings:
            self.load_factor(binding)
            if binding.matmul is not None:
                self.load(binding)
                continue
            weight = self.dense(binding)
            binding.module._parameters[binding.name] = nn.Parameter(weight, requires_grad=False)

    def empty(self, bindings: Iterable[Binding]) -> None:
        """Takes the parameters away again, so that nothing runs on another layer's weights."""
        for binding in bindings:
            if binding.factor is not None:
                binding.factor.unload()
            if binding.matmul is not None:
                binding.matmul.unload()
                continue
            shape = tuple(binding.scheme.shape)
            meta = torch.empty(shape, dtype=binding.dtype, device="meta")
            binding.module._parameters[binding.name] = nn.Parameter(meta, requires_grad=False)

    def kept(self, binding: Binding) -> torch.Tensor:
        """The weight for good: as it is stored if dense, else decoded into memory of its own."""
        if isinstance(binding.scheme, Dense):
            (name,) = binding.tensor_names().values()
            return self._fetch(name, None)
        return self.own(binding)

    def own(self, binding: Binding) -> torch.Tensor:
        """The effective weight in memory of its own, which nothing decoded later touches."""
        out = torch.empty(tuple(binding.scheme.shape), dtype=binding.dtype, device=self.device)
        binding.scheme.decode(self.tensors(binding), out, self._scratch)
        return out

    def dense(self, binding: Binding, place: int = 0) -> torch.Tensor:
        """The effective weight, valid until another of the same role and shape is decoded in the
        same `place`."""
        tensors = self.tensors(binding)
        if isinstance(binding.scheme, Dense):
            (tensor,) = tensors.values()
            if tensor.dtype == binding.dtype and tensor.device == self.device:
                return tensor
        out = self._buffer(binding.role, binding.scheme, binding.dtype, place)
        binding.scheme.decode(tensors, out, self._scratch)
        return out

    def load(self, binding: Binding, place: int = 0) -> QuantizedMatmul:
        """Gives the binding's matmul its codes and scales, valid as long as `dense` would be."""
        matmul = binding.matmul
        assert matmul is not None
        scheme, dtype = matmul.scheme, matmul.product.dtype
        tensors = self.tensors(binding)
        weight = scheme.stored_factors(tensors, dtype)
        if weight is None:
            out = self._buffer(f"{binding.role} codes", scheme, dtype, place)
            weight = factors_of(scheme, tensors, out, self._scratch)
        matmul.load(weight, self._static(binding), self._scratch, tensors)
        return matmul

    def load_factor(self, binding: Binding) -> None:
        """Gives the binding's input its factors, where there are some."""
        if binding.factor is not None:
            binding.factor.load(self._fetch(binding.factor_name(), None))

    def factored(self, binding: Binding) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """The weight for good, float32 and multiplied out exactly, with the static scales of its
        input. A minimum a group is in columns behind all others [O, I + I / group]."""
        scheme = binding.scheme
        assert isinstance(scheme, FactoredScheme)
        out = torch.empty(tuple(scheme.shape), device=self.device)
        weight = factors_of(scheme, self.tensors(binding), out, self._scratch)
        dense = weight.dense(scheme.codes.group)
        if weight.minimum is not None:
            dense = torch.cat([dense, weight.minimum], 1)
        return dense, self._static(binding)

    def _static(self, binding: Binding) -> dict[str, torch.Tensor]:
        """The static scales of the binding's input, by suffix."""
        return self._entries(binding, binding.input_names())

    def tensors(self, binding: Binding) -> dict[str, torch.Tensor]:
        """Tensors that the binding's scheme reads, by suffix."""
        return self._entries(binding, binding.tensor_names())

    def _entries(self, binding: Binding, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """Tensors by suffix, of those that hold all experts the one's entry."""
        shared = shared_tensors(binding.scheme)
        return {
            suffix: self._fetch(name, None if name.rpartition(".")[2] in shared else binding.index)
            for suffix, name in names.items()
        }

    def _buffer(self, role: str, scheme: Scheme, dtype: torch.dtype, place: int) -> torch.Tensor:
        shape = tuple(scheme.shape)
        key, size = (role, shape, place), math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._buffers[key] = buffer
        return buffer[:size].view(dtype).view(shape)

    def bytes_for(self, bindings: Iterable[Binding]) -> int:
        """Memory that all of these take, one after the other: those of a role and shape share it."""
        sizes: dict[tuple[str, bool, tuple[int, ...]], int] = {}
        for binding in bindings:
            key = binding.role, binding.matmul is not None, tuple(binding.scheme.shape)
            sizes[key] = max(sizes.get(key, 0), self.bytes_of(binding))
        return sum(sizes.values())

    def bytes_of(self, binding: Binding) -> int:
        """Memory that a place for the weight takes: none where it is used as it is stored."""
        scheme, matmul = binding.scheme, binding.matmul
        dtype = binding.dtype if matmul is None else matmul.product.dtype
        if isinstance(scheme, Dense) and scheme.is_stored_as(dtype):
            return 0
        return math.prod(scheme.shape) * dtype.itemsize
