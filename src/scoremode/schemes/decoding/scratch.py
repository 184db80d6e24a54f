"""Memory that decoding works in, again and again."""

import torch

__all__ = ["Scratch"]


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
