"""Waits for a GPU, counted instead of timed: whether a GPU is still busy depends on the machine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

__all__ = ["waits"]


@contextmanager
def waits() -> Iterator[list[str]]:
    """Lists what this thread waits for by `synchronize` within the block: a device, streams, events."""
    found: list[str] = []
    thread = threading.get_ident()

    def noted(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                found.append(name)
            return wait(*args, **kwargs)

        return waiting

    with pytest.MonkeyPatch.context() as patch:
        for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
            patch.setattr(owner, "synchronize", noted(owner.__name__, owner.synchronize))
        yield found
