"""Scores that a GPU is still computing.

A pass is queued and not waited for, so that the next one is queued behind it before this one's scores
are fetched, checked and written.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from scoremode.engines.base import OutOfMemory
from scoremode.results.scores import Scores

__all__ = ["Launched", "fetched", "to_host"]

T = TypeVar("T")


class Launched:
    """A pass whose scores are on their way: `columns` are of the plan, `results` of the head, for each
    group of windows."""

    def __init__(
        self, columns: list[dict[str, np.ndarray]], results: list[list[Any]], device: torch.device
    ):
        self._columns, self._results = columns, results
        self._done: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(device))

    def scores(self) -> Scores:
        """Waits for them."""
        if self._done is not None:
            self._done.synchronize()
        groups = []
        for columns, results in zip(self._columns, self._results, strict=True):
            whole = dict(columns)
            for result in results:
                whole |= result.columns()
            groups.append(whole)
        names = groups[0]
        return Scores.from_columns({n: np.concatenate([g[n] for g in groups]) for n in names})


def fetched(begun: Iterator[Callable[[], T]], *, ahead: bool) -> Iterator[T]:
    """The result of each pass that `begun` begins and gives a call to wait for.

    `ahead`: a pass is waited for when the next one has begun, as for a GPU that has it queued; or when
    there is too little memory for that one, before its OutOfMemory is raised.
    """
    if not ahead:
        yield from (wait() for wait in begun)
        return
    waiting: Callable[[], T] | None = None
    while True:
        try:
            following = next(begun, None)
        except OutOfMemory:
            if waiting is not None:
                yield waiting()
            raise
        if waiting is not None:
            yield waiting()
        if following is None:
            return
        waiting = following


def to_host(result: Any) -> Any:
    """`result`, a dataclass of tensors and dictionaries of them, with those on a GPU on their way to
    the host.

    They are there when a `Launched` that was made after says so.
    """
    if isinstance(result, torch.Tensor):
        return result.to("cpu", non_blocking=True)
    if isinstance(result, dict):
        return {name: to_host(value) for name, value in result.items()}
    if not is_dataclass(result) or isinstance(result, type):
        return result
    return replace(result, **{f.name: to_host(getattr(result, f.name)) for f in fields(result)})
