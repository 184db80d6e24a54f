"""Position tables that a forward may change, as they were before it."""

from typing import Any

from torch import nn

__all__ = ["PositionTables"]


class PositionTables:
    """Position tables as they were built.

    Some grow with the longest window seen (dynamic NTK) and would make a window's scores depend on
    the ones before it; every window starts from the same tables instead.
    """

    def __init__(self, model: nn.Module):
        self._modules = [m for m in model.modules() if hasattr(m, "max_seq_len_cached")]
        self._before = [(dict(m._buffers), self._numbers(m)) for m in self._modules]

    @staticmethod
    def _numbers(module: nn.Module) -> dict[str, Any]:
        return {k: v for k, v in vars(module).items() if type(v) in (int, float)}

    def restore(self) -> None:
        for module, (buffers, numbers) in zip(self._modules, self._before, strict=True):
            module._buffers.update(buffers)
            vars(module).update(numbers)
