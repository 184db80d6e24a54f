"""A reference's states on their way to a GPU, a span ahead of the one that is compared with.

An engine queues a pass on the GPU without waiting for it. A copy from a mapped file would have it wait
twice, for the file and for the queue, so spans are read into pinned memory by a thread, and go from
there to the device by a stream of their own. Spans come in order, so the one behind the last is fetched
before it is asked for; any other is only slower. Two spans' worth of pinned and of the device's memory
take turns.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from scoremode.checkpoint.plain import read_at
from scoremode.errors import ReferenceUnusable
from scoremode.reference.base import Span

__all__ = ["Ahead", "CudaLane", "Lane", "StatesFile", "StatesReader"]

_REQUEST = 1 << 24
_THREADS = 4


@dataclass(frozen=True)
class StatesFile:
    """Where the states of a pass lie: `rows` of them from byte `begin` of the file at `path`."""

    path: Path
    begin: int
    rows: int


class StatesReader:
    """Rows of states from their files by plain reads, several at once.

    - `row_bytes`: of one row. Files are opened when they are first read from, and stay open.
    """

    def __init__(self, files: Sequence[StatesFile], row_bytes: int):
        self._files, self._row_bytes = files, row_bytes
        self._threads = ThreadPoolExecutor(_THREADS, "scoremode-states")
        self._open: dict[Path, int] = {}

    def __del__(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def fill(self, memory: torch.Tensor, span: Span) -> None:
        """Fills `memory` uint8 [n] on the host with the rows of `span`. Raises ReferenceUnusable."""
        view, filled, first = memory.numpy().data, 0, 0
        requests = []
        for file in self._files:
            low, high = max(span[0] - first, 0), min(span[1] - first, file.rows)
            if low < high:
                size, at = (high - low) * self._row_bytes, file.begin + low * self._row_bytes
                for start in range(0, size, _REQUEST):
                    stop = min(start + _REQUEST, size)
                    part = view[filled + start : filled + stop]
                    requests.append((self._descriptor(file.path), file.path, at + start, part))
                filled += size
            first += file.rows
        assert filled == len(memory), f"rows {span[0]} to {span[1]} of {first}"
        for done in [self._threads.submit(_read, *request) for request in requests]:
            done.result()

    def _descriptor(self, path: Path) -> int:
        if path not in self._open:
            try:
                self._open[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise ReferenceUnusable(f"{path}: {error.strerror}") from None
        return self._open[path]


def _read(descriptor: int, path: Path, at: int, part: memoryview) -> None:
    try:
        whole = read_at(descriptor, part, at)
    except OSError as error:
        raise ReferenceUnusable(f"{path}: {error.strerror}") from None
    if not whole:
        raise ReferenceUnusable(f"{path}: has become shorter")


class Lane(Protocol):
    """The way of one turn's bytes: memory at both ends, and what must be waited for."""

    def room(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 [size] on the host and on the device, the same ones again where they suffice."""
        ...

    def send(
        self, host: torch.Tensor, device: torch.Tensor, fill: Callable[[torch.Tensor], None]
    ) -> None:
        """In the loading thread: `fill`s the host's memory and begins to send it."""
        ...

    def arrive(self) -> None:
        """What is queued from now on finds the device's memory filled."""
        ...

    def release(self) -> None:
        """The device's memory may be written again when all that is queued now is done."""
        ...


class CudaLane:
    """A lane to `device` by `stream`."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream):
        self._device, self._stream = device, stream
        self._host = self._memory = torch.empty(0, dtype=torch.uint8)
        self._sent, self._free = torch.cuda.Event(), torch.cuda.Event()

    def room(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        if size > len(self._host):
            self._host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            # Replaced by a larger one, it may still be on its way.
            self._memory.record_stream(self._stream)
            # What the allocator gives may still be read by work that is queued.
            self.release()
        return self._host[:size], self._memory[:size]

    def send(
        self, host: torch.Tensor, device: torch.Tensor, fill: Callable[[torch.Tensor], None]
    ) -> None:
        # Until then the host's memory is being read.
        self._sent.synchronize()
        fill(host)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free)
            device.copy_(host, non_blocking=True)
            self._sent.record(self._stream)

    def arrive(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._sent)

    def release(self) -> None:
        self._free.record(torch.cuda.current_stream(self._device))


class Ahead:
    """Spans of `rows` rows of `width` values each, one after the other, over two `lanes`.

    Calls must come from one thread and, on a GPU, from one stream.
    """

    def __init__(
        self,
        reader: StatesReader,
        rows: int,
        width: int,
        dtype: torch.dtype,
        lanes: tuple[Lane, Lane],
    ):
        self._reader, self._rows, self._width, self._dtype = reader, rows, width, dtype
        self._lanes = lanes
        self._loader = ThreadPoolExecutor(1, "scoremode-ahead")
        self._given: Lane | None = None
        self._next: _Loading | None = None

    def expect(self, span: Span) -> None:
        """Begins to fetch a span, if that is not what is on its way already."""
        if self._next is None or not self._next.has(span):
            self._next = self._load(*span)

    def take(self, span: Span) -> torch.Tensor:
        """Its rows [N, D], until the next call: what was queued before that still finds them.

        Raises ReferenceUnusable.
        """
        begin, end = span
        if self._given is not None:
            self._given.release()
            self._given = None
        loading, self._next = self._next, None
        if loading is None or not loading.has(span):
            # One that nobody asked for is overwritten: the same thread loads both, in order.
            loading = self._load(begin, end)
        loading.done.result()
        loading.lane.arrive()
        self._given = loading.lane
        if end < self._rows:
            self._next = self._load(end, min(2 * end - begin, self._rows))
        states = loading.memory.view(self._dtype).view(loading.end - begin, self._width)
        return states[: end - begin]

    def _load(self, begin: int, end: int) -> "_Loading":
        lane = self._lanes[1] if self._given is self._lanes[0] else self._lanes[0]
        host, memory = lane.room((end - begin) * self._width * self._dtype.itemsize)

        def fill(host: torch.Tensor) -> None:
            self._reader.fill(host, (begin, end))

        return _Loading(
            begin, end, lane, memory, self._loader.submit(lane.send, host, memory, fill)
        )


@dataclass(frozen=True)
class _Loading:
    """Rows `begin … end` on their way into `memory`."""

    begin: int
    end: int
    lane: Lane
    memory: torch.Tensor
    done: "Future[None]"

    def has(self, span: Span) -> bool:
        """Whether it begins with those rows."""
        return self.begin == span[0] and self.end >= span[1]
