"""Seconds of the head, without holding up a device that works ahead."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["HeadClock"]


class HeadClock:
    """Seconds of some stretches of work: a GPU's own, where it does the work."""

    def __init__(self):
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            begin = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begin
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))

    def seconds(self) -> float:
        """Seconds so far. Waits for the device."""
        for begin, end in self._events:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds
