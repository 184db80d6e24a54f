"""The Slot, memory for one decoder layer that every layer is decoded into in turn, and the bindings of
parameters to what they are made of: tensors of a checkpoint, decoded by a Scheme.

A checkpoint may store a parameter in parts: linears that the model has as one, each on its own
(`Joined`), and DeepSeek's `kv_b_proj` in a GGUF file, head by head (`Heads`). llama.cpp multiplies
queries with the keys' part and outputs with the values', a head at a time, and its converter stores
them for that: `k_b_proj` [H, I, K], each head's transposed, and `v_b_proj` [H, V, I]. The library's
parameter is [H · (K + V), I]: of each head the keys' rows and then the values'.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from scoremode.engines.torch.matmul.linears import InputFactor, QuantizedMatmul
from scoremode.errors import CheckpointError
from scoremode.schemes.base import Dense, FactoredScheme, Scheme, Scratch, factors_of, input_factor
from scoremode.schemes.fused_experts import input_tensors, shared_tensors

# The last name of the library's module → the parts', keys first.
PARTS = {"kv_b_proj": ("k_b_proj", "v_b_proj")}
# A tensor by name, on the device; with an index only that entry of its first axis.
Fetch = Callable[[str, int | None], torch.Tensor]


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

    def own(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Suffix → tensor, of its own among `tensors` by their full names."""
        return {suffix: tensors[name] for suffix, name in self.tensor_names().items()}

    def _full(self, suffix: str) -> str:
        return f"{self.module}.{suffix}" if self.module else suffix


def decoded(
    source: Source,
    role: str,
    tensors: Mapping[str, torch.Tensor],
    like: torch.Tensor,
    scratch: Scratch,
) -> torch.Tensor:
    """A source's weight of its `tensors`, by full names, in scratch memory and the dtype of `like`."""
    dense = scratch.get(role, tuple(source.scheme.shape), like.dtype, like.device)
    source.scheme.decode(source.own(tensors), dense, scratch)
    return dense


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


class _Parts:
    """A Scheme made of `parts`, whose tensors are theirs, under their full names."""

    inputs = None

    def __init__(self, parts: Sequence[Source]):
        self.parts = tuple(parts)
        self.label = " + ".join(sorted({part.scheme.label for part in parts}))
        self.tensors = tuple(name for part in parts for name in part.tensor_names().values())
        self.shape = self._shape()

    def __str__(self) -> str:
        return " and ".join(part.module for part in self.parts)

    def _shape(self) -> tuple[int, ...]:
        raise NotImplementedError


class Joined(_Parts):
    """A Scheme whose outputs are those of its parts, one after the other, inputs not quantized."""

    def _shape(self) -> tuple[int, ...]:
        assert not any(part.scheme.inputs for part in self.parts)
        rows = sum(part.scheme.shape[0] for part in self.parts)
        return rows, *self.parts[0].scheme.shape[1:]

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        begin = 0
        for part in self.parts:
            end = begin + part.scheme.shape[0]
            part.scheme.decode(part.own(tensors), out[begin:end], scratch)
            begin = end


class Heads(_Parts):
    """A Scheme whose outputs are, head by head, those of a transposed part and then those of another.

    Raises CheckpointError where the parts are no such two.
    """

    def _shape(self) -> tuple[int, ...]:
        shapes = [tuple(part.scheme.shape) for part in self.parts]
        if any(len(shape) != 3 for shape in shapes):
            raise CheckpointError(f"{self} are not stored head by head")
        (heads, inputs, keys), (others, values, width) = shapes
        if (heads, inputs) != (others, width):
            raise CheckpointError(
                f"{self}, of shapes {list(shapes[0])} and {list(shapes[1])}, don't fit each other"
            )
        return heads * (keys + values), inputs

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        keys, values = (
            decoded(part, f"heads' {role}", tensors, out, scratch)
            for part, role in zip(self.parts, ("keys", "values"), strict=True)
        )
        by_head = out.view(len(keys), -1, out.shape[1])
        by_head[:, : keys.shape[2]].copy_(keys.transpose(1, 2))
        by_head[:, keys.shape[2] :].copy_(values)


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
