"""Devices and dtypes: where to compute, in what, in how much memory; and the seconds a stage takes.

Work on a GPU is queued far ahead of its execution. Waiting for it around every stage would leave the
device idle in between, so stages are marked by events in its stream, which are read when they are over
(`DeviceClock`).
"""

import os
import platform
import resource
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from scoremode.checkpoint.config import dtype_of
from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import EngineError, UsageError
from scoremode.head.project import cpu_has_instructions
from scoremode.lib.machine import cpu_name, memory_bytes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Of a GPU's memory: what the driver, its libraries and their workspaces take beside the tensors.
_RUNTIME_BYTES = 3 << 28
_STORED = {"F32": "float32", "F64": "float32", "BF16": "bfloat16", "F16": "float16"}
# Marks that may be pending before those that are over are looked for: each is an event of the driver's.
_PENDING = 1024


@dataclass(frozen=True)
class Device:
    """One device: `name` for people, `memory` the bytes that tensors may use there."""

    torch: torch.device
    name: str
    memory: int

    @property
    def is_cuda(self) -> bool:
        return self.torch.type == "cuda"

    def peak_bytes(self) -> int:
        """Most memory held so far: of the device on CUDA, of the process on a CPU."""
        if self.is_cuda:
            return torch.cuda.max_memory_reserved(self.torch)
        # Linux counts in KiB, macOS in bytes.
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def beside(self, taken: int) -> "Device":
        """The device with the memory that is left where others take so many bytes of a GPU's."""
        return replace(self, memory=max(0, self.memory - taken)) if self.is_cuda else self

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.torch.type,
            "name": self.name,
            "memory_bytes": self.memory,
            "threads": None if self.is_cuda else torch.get_num_threads(),
        }


def choose_device(name: str | None, max_memory: int | None, share: float | None) -> Device:
    """The device called `name` (`cpu`, `cuda`, `cuda:1`); None takes a GPU if there is one.

    `max_memory` in bytes and `share` of the whole bound what is used; both are fixed quantities, so
    that a schedule made from them is the same tomorrow. Raises EngineError, UsageError.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: not a device") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise EngineError(f"--device {name}: this machine or this torch has no CUDA device")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise EngineError(f"--device {name}: there are {torch.cuda.device_count()}")
        total = torch.cuda.get_device_properties(device).total_memory
        title = torch.cuda.get_device_name(device)
    elif device.type == "cpu":
        fix_rounding()
        total, title = memory_bytes(), cpu_name()
    else:
        raise EngineError(f"--device {name}: only cpu and cuda are supported")
    memory = min(total, max_memory or total)
    if device.type == "cuda":
        if share is not None:
            memory = min(memory, int(total * share))
        if memory <= _RUNTIME_BYTES:
            raise EngineError(
                f"{memory / 2**20:.0f} MiB of {title} are no more than what CUDA and its libraries "
                f"take there ({_RUNTIME_BYTES / 2**20:.0f} MiB): raise --max-memory"
            )
        memory -= _RUNTIME_BYTES
        if max_memory is not None or share is not None:
            torch.cuda.set_per_process_memory_fraction(memory / total, device)
    return Device(device, title, memory)


def fix_rounding() -> None:
    """Has MKL round a product alike wherever its factors lie in memory, if it hasn't computed yet.

    By default products of few rows depend on the address of the weights, which needn't be the same
    from run to run where files are mapped or experts stacked: on an AMD EPYC, 1 to 5 rows of float32
    differ. A value that the user has set stays. `AUTO,STRICT` would have them the same beside other
    rows, too, at a third of the speed on a Xeon. Source: oneMKL's guide, "Conditional Numerical
    Reproducibility".
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")


def make_current(device: torch.device) -> None:
    """Makes a GPU the process's current one, which Triton launches its kernels on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def join_segments(device: torch.device) -> None:
    """Has a GPU's allocator put what it takes from now on into one range that grows and shrinks.

    A window's states at 128k tokens are a gigabyte each, and of blocks of such sizes and of a quarter
    of them a third lies idle where each freed one stays a segment of its own.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def choose_dtype(name: str, checkpoint: Checkpoint, device: Device) -> torch.dtype:
    """The dtype to compute in. `auto` is the checkpoint's, or float32 on a CPU without
    instructions for it. Raises UsageError."""
    if name != "auto":
        return DTYPES[name]
    stored = dtype_of(checkpoint.config)
    if stored is None:
        floats = [t.dtype for t in checkpoint.tensors.values() if t.dtype in _STORED]
        stored = _STORED[max(set(floats), key=floats.count)] if floats else "float32"
    if stored not in DTYPES:
        raise UsageError(f"config.json's dtype {stored!r} can't be computed in: give --dtype")
    dtype = DTYPES[stored]
    return dtype if has_instructions(dtype, device) else torch.float32


def has_instructions(dtype: torch.dtype, device: Device) -> bool:
    """True where the device multiplies matrices of `dtype` natively, rather than by converting."""
    return device.is_cuda or cpu_has_instructions(dtype)


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
