"""CUDA's streams, events and memory on a CPU: work is put off until something waits for it.

What would be a race on a GPU gives wrong bytes here, every time.
"""

import threading
from types import SimpleNamespace

import torch


class Stream:
    """One of CUDA's streams: its work is done in order, and no sooner than somebody waits for it."""

    # Of all streams: each may wait for the others.
    _doing = threading.RLock()

    def __init__(self, device=None):
        self.work: list = []
        self._done = 0

    def wait_event(self, event):
        self.work.append(event.synchronize)

    def run(self, count: int) -> None:
        """Does its first `count` pieces of work, unless they are done."""
        with self._doing:
            for work in self.work[self._done : count]:
                work()
                self._done += 1


class Event:
    """Done when all is that its stream had to do when it was recorded last."""

    def __init__(self):
        self.at: tuple[Stream, int] | None = None

    def record(self, stream):
        self.at = stream, len(stream.work)

    def synchronize(self):
        if self.at is not None:
            self.at[0].run(self.at[1])


class Lazy:
    """A block of device memory as a thread sees it: copies into it go by the thread's stream."""

    def __init__(self, memory: torch.Tensor, cuda: "Cuda"):
        self.memory, self.cuda = memory, cuda

    def __getitem__(self, key):
        return Lazy(self.memory[key], self.cuda)

    def __len__(self):
        return len(self.memory)

    @property
    def device(self):
        return self.memory.device

    def record_stream(self, stream) -> None:
        """Keeps nothing: what holds this memory holds it until its work is done."""

    def copy_(self, source: torch.Tensor, non_blocking: bool) -> None:
        assert non_blocking and len(source) == len(self.memory)
        self.cuda.current().work.append(lambda: self.memory.copy_(source))

    def view(self, dtype):
        return self.memory.view(dtype)


class Cuda:
    """Stand-in for `torch` in a module that sends: torch, but for CUDA and its memory."""

    def __init__(self):
        self.main = Stream()
        self.local = threading.local()
        self.on_device = 0
        self.cuda = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            device=self.within,
            stream=self.switched,
            current_stream=lambda device=None: self.current(),
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    def current(self) -> Stream:
        return getattr(self.local, "stream", self.main)

    def within(self, device):
        return Switched()

    def switched(self, stream):
        return Switched(self.local, stream)

    def empty(self, size, *, dtype, device=None, pin_memory=False):
        # What nothing has written is never what is wanted.
        memory = torch.full((size,), 0xEE, dtype=dtype)
        if pin_memory or device is None:
            return memory
        self.on_device += size
        # Another tensor's until now, which queued work may still be writing to.
        self.current().work.append(lambda: memory.fill_(0xEE))
        return Lazy(memory, self)


class Switched:
    """Sets the thread's stream, and nothing without one."""

    def __init__(self, local=None, stream=None):
        self.local, self.stream = local, stream

    def __enter__(self):
        if self.local is not None:
            self.local.stream = self.stream

    def __exit__(self, *_):
        if self.local is not None:
            del self.local.stream
