"""Bytes on their way to a GPU, ahead of the work that uses them.

Work on a GPU is queued, not waited for. A copy from a file would wait twice, for the file and for the
queue; so a thread reads into pinned memory, and a stream of its own sends that to the device. Where
transfers share memory, events say when it is filled, and when it may be written again.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

__all__ = ["Fetch", "Lane", "Prefetcher", "Send", "Staging"]

# Fills memory on the device, uint8 [n], by a stream, which is the current one.
Send = Callable[[torch.Tensor, torch.cuda.Stream], None]


class Lane:
    """Device memory for one transfer after the other, by `stream`.

    Calls must come from the thread and, on the GPU, from the stream that use what it brings.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, size: int = 0):
        self._device, self._stream = device, stream
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self.free = torch.cuda.Event()
        self.room(size)

    def room(self, size: int) -> torch.Tensor:
        """uint8 [size], the same memory again where it suffices."""
        if size > len(self._memory):
            self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            # Replaced by a larger one, or given up, it may still be on its way.
            self._memory.record_stream(self._stream)
            # What the allocator gives may still be used by work that is queued.
            self.release()
        return self._memory[:size]

    def release(self) -> None:
        """Says that its memory may be written again when all that is queued now is done."""
        self.free = torch.cuda.Event()
        self.free.record(torch.cuda.current_stream(self._device))


@dataclass(frozen=True)
class Fetch:
    """A transfer under way: to memory of `lane`, or to memory of its own."""

    lane: Lane | None
    sending: "Future[tuple[torch.Tensor, torch.cuda.Event]]"

    def arrived(self) -> torch.Tensor:
        """The memory on the device, uint8 [n], which work that is queued from now on finds filled.

        Waits for the thread that sends it, not for the device. Raises what that thread raised.
        """
        memory, sent = self.sending.result()
        torch.cuda.current_stream(memory.device).wait_event(sent)
        return memory


class Prefetcher:
    """A thread called `name` that fetches in the order in which it is asked to, and its stream."""

    def __init__(self, device: torch.device, name: str):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._thread = ThreadPoolExecutor(1, name)

    def lane(self, size: int = 0) -> Lane:
        """Memory of `size` bytes to begin with."""
        return Lane(self._device, self._stream, size)

    def fetch(self, size: int, send: Send, lane: Lane | None = None) -> Fetch:
        """Has `send` fill `size` bytes on the device, from now on, in the thread.

        Into memory of `lane` when that is free, whatever was fetched into it before; without one into
        memory of its own, that nothing else is ever written to.
        """
        memory = None if lane is None else lane.room(size)
        free = None if lane is None else lane.free
        return Fetch(lane, self._thread.submit(self._send, size, send, memory, free))

    def close(self) -> None:
        """Ends the thread; what it is at is finished first."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _send(
        self, size: int, send: Send, memory: torch.Tensor | None, free: torch.cuda.Event | None
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Returns the memory, and the event of its being filled. Runs in the thread."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if memory is None:
                memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            if free is not None:
                self._stream.wait_event(free)
            send(memory, self._stream)
            sent = torch.cuda.Event()
            sent.record(self._stream)
            return memory, sent


class Staging:
    """Pinned memory between files and a device: so many `pieces`, of `least` bytes or more, in turn."""

    def __init__(self, pieces: int, least: int = 0):
        self._least = least
        empty = torch.empty(0, dtype=torch.uint8)
        self._pieces = deque((empty, torch.cuda.Event()) for _ in range(pieces))

    def send(
        self, memory: torch.Tensor, stream: torch.cuda.Stream, fill: Callable[[torch.Tensor], None]
    ) -> None:
        """Has `fill` fill as many bytes on the host, and `stream`, the current one, copy them to
        `memory` uint8 [n]."""
        piece, sent = self._pieces[0]
        # Until then it is being read.
        sent.synchronize()
        if len(memory) > len(piece):
            piece = torch.empty(max(len(memory), self._least), dtype=torch.uint8, pin_memory=True)
        host = piece[: len(memory)]
        fill(host)
        memory.copy_(host, non_blocking=True)
        sent.record(stream)
        self._pieces[0] = piece, sent
        self._pieces.rotate(-1)
