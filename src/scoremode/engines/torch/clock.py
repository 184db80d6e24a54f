"""Seconds a stage, without waiting for the device.

Work on a GPU is queued far ahead of its execution. Waiting for it around every stage would leave the
device idle in between, so stages are marked by events in its stream, which are read when they are over.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["DeviceClock"]

# Marks that may be pending before those that are over are looked for: each is an event of the driver's.
_PENDING = 1024


class DeviceClock:
    """Seconds of every stage so far; stages must not overlap."""

    def __init__(self, device: torch.device):
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._pending: deque[tuple[str, Any, Any]] = deque()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts what is queued inside as `name`; on a CPU, what runs."""
        begin = self._mark()
        try:
            yield
        finally:
            if self._device.type == "cuda":
                self._pending.append((name, begin, self._mark()))
                if len(self._pending) > _PENDING:
                    self._settle()
            else:
                self._seconds[name] += self._mark() - begin

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """Seconds of all stages that are over; those still queued will be in the next answer."""
        self._settle()
        return {name: round(value, 3) for name, value in self._seconds.items()}

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _settle(self) -> None:
        # They end in the order in which they were queued.
        while self._pending and self._pending[0][2].query():
            name, begin, end = self._pending.popleft()
            self._seconds[name] += begin.elapsed_time(end) / 1000
