"""What a quantization format has to offer: names of tensors, and a decoder into a given buffer.

A `Scheme` is one linear's format with everything known that its headers tell. It owns no weights:
`decode` gets the packed tensors, wherever they lie, and fills a dense weight in place. Decoding
reuses scratch memory, since allocating for every layer costs several times the decoding itself.
"""

from collections.abc import Mapping
from typing import Protocol

import torch

__all__ = ["Scheme", "Scratch"]


class Scheme(Protocol):
    """One module's format.

    - `label`: what people call it, such as `W4A16 g128`.
    - `tensors`: the suffixes of the checkpoint's tensors that it reads (`weight_packed`, …).
    - `shape`: out × in of the dense weight.
    """

    @property
    def label(self) -> str: ...
    @property
    def tensors(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: "Scratch"
    ) -> None:
        """Fills `out` [O, I], of any float dtype, with the effective weight.

        `tensors` are those of `self.tensors` by suffix, on the device of `out`.
        """
        ...


class Scratch:
    """Buffers that are reused from one decode to the next, by role, dtype and device."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def get(
        self, role: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """An uninitialised contiguous tensor, valid until the role is asked for again."""
        key = (role, dtype, device)
        size = 1
        for n in shape:
            size *= n
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)
