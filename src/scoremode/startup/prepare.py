"""The start of a run: all that it needs before its first layer computes, as early as possible.

Importing torch and transformers, opening the GPU, reading and hashing the weights, tokenizing: each
takes seconds, most of them outside Python's lock. Planning goes on in the thread that called, so that
its errors come as if it were alone; everything else runs beside it, and nothing is left running when
the block of `preparing` ends.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Options
from scoremode.lib.tasks import Task
from scoremode.startup.imports import libraries

__all__ = ["count_gpus", "open_gpu", "preparing"]


@contextmanager
def preparing(checkpoint: Checkpoint, options: Options, *, hashes: bool = True) -> Iterator[None]:
    """Imports, opens and reads beside its block what an engine of `options` needs.

    `scoring.engine_factory` waits for the imports, `checkpoint.hash_files` for the hashes; without
    `hashes` for a process that records none.
    """
    beside: list[Task[None]] = []

    def wait() -> None:
        for each in beside:
            each.wait()

    def warm(gpu: int, config: Mapping[str, Any]) -> None:
        from scoremode.startup.gpu_libraries import warmer

        # An error is nobody's: the engine meets it again, and a broken Triton is no matter for a model
        # that uses none of its kernels.
        with suppress(Exception):
            if (kernels := warmer(gpu, config)) is not None:
                beside.append(Task(kernels))

    try:
        if (gpu := options.gpu) is not None:
            beside.append(Task(partial(open_gpu, gpu)))
            libraries.ask(partial(warm, gpu, checkpoint.config))
        libraries.modules(*options.modules)
        if beside:
            # Before any other thread computes: the order of attention's kernels is the process's.
            libraries.ask(wait)
        if hashes:
            checkpoint.hashing()
        yield
    finally:
        libraries.settle()
        checkpoint.stop_hashing()
        wait()


def open_gpu(number: int) -> None:
    """Creates the CUDA context that torch will use, by the driver's own call and without torch.

    It takes most of a second, and torch, which finds the context there, would take it after all
    imports. Nothing happens without a driver or without that GPU: torch tells why, when it is asked for
    the device.
    """
    # As torch sets it, before the driver reads it: drivers before 12.2 load everything otherwise.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(handle), number) == 0:
        # Never released: it is the process's until its end, as torch's own is.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def count_gpus() -> int | None:
    """Counts this machine's NVIDIA GPUs, without waking one; None where its kernel doesn't say."""
    known = Path("/proc/driver/nvidia/gpus")
    if known.is_dir():
        return len(list(known.iterdir()))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None if Path("/dev/kfd").exists() else 0
    return None
