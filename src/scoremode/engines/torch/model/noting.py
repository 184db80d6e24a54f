"""What modules return while a model's forward runs, to tell afterwards where a tensor comes from."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.model.dependence import Dependence

__all__ = ["Noted", "noting"]


@dataclass(frozen=True)
class Noted:
    """What a module returned: `of` what, if that was its one argument, and as it was then."""

    module: nn.Module
    of: Any
    out: Any
    version: int

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is all of it, and unchanged."""
        out = self.out
        return (
            isinstance(out, torch.Tensor)
            and (out.data_ptr(), out.shape, out.stride(), out.dtype)
            == (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            and tensor._version == self.version
        )


@contextmanager
def noting(
    modules: Iterable[nn.Module], watching: Dependence | None = None
) -> Iterator[list[Noted]]:
    """Within it, every call of one of `modules` is noted.

    `watching` takes what they return for dependent, and minds nothing that they do with values.
    """
    noted: list[Noted] = []
    given: list[Any] = []

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        given.append(args[0] if len(args) == 1 and not kwargs else None)
        if watching is not None:
            watching.is_paused = True

    def end(module: nn.Module, args: Any, out: Any) -> None:
        if watching is not None:
            watching.is_paused = False
            watching.note(out)
        version = out._version if isinstance(out, torch.Tensor) else 0
        noted.append(Noted(module, given.pop(), out, version))

    handles = []
    for module in modules:
        # Before hooks that prepare its weights, and change its arguments.
        handles.append(module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
        handles.append(module.register_forward_hook(end))
    try:
        yield noted
    finally:
        for handle in handles:
            handle.remove()
