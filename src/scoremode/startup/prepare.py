"""What a run needs before its first layer computes, all at once and as early as possible.

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

from scoremode.background.beside import Beside
from scoremode.background.imports import import_model_class, libraries
from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.options import TorchOptions

__all__ = ["count_gpus", "open_gpu", "preparing", "read_ahead"]

# Of the machine's memory, what weights may fill before they are asked for.
_AHEAD_SHARE = 1 / 2


@contextmanager
def preparing(checkpoint: Checkpoint, options: object, *, hashes: bool = True) -> Iterator[None]:
    """Within it, what an engine of `options` needs is imported, opened and read beside the rest.

    `scoring.engine_factory` waits for the imports, `checkpoint.hash_files` for the hashes; without
    `hashes` for a process that records none.
    """
    beside: list[Beside[None] | _Warming] = []
    try:
        if isinstance(options, TorchOptions):
            warming = _Warming(options.device, checkpoint.config)
            beside += [Beside(partial(open_gpu, options.device)), warming]
            libraries.modules("torch", "scoremode.startup.gpu_libraries")
            libraries.ask(warming.begin)
            libraries.ask(partial(import_model_class, str(checkpoint.config.get("model_type"))))
            libraries.modules("scoremode.engines.torch.engine")
            libraries.ask(warming.wait)
        beside.append(Beside(partial(read_ahead, checkpoint)))
        if hashes:
            checkpoint.hashing()
        yield
    finally:
        libraries.settle()
        checkpoint.stop_hashing()
        for each in beside:
            each.wait()


def open_gpu(device: str | None) -> None:
    """Creates the CUDA context that torch will use, by the driver's own call and without torch.

    It takes most of a second, and torch, which finds the context there, would take it after all
    imports. `device` as `--device` has it; a process of torchrun's opens its own. Nothing happens
    without a driver or without that GPU: torch tells why, when it is asked for the device.
    """
    number = _gpu(device)
    if number is None:
        return
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
    """How many NVIDIA GPUs this machine has, without waking one; None where its kernel doesn't say."""
    known = Path("/proc/driver/nvidia/gpus")
    if known.is_dir():
        return len(list(known.iterdir()))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None if Path("/dev/kfd").exists() else 0
    return None


def _gpu(device: str | None) -> int | None:
    """The GPU's number that `--device` means, whether it is there or not; None for no GPU."""
    kind, _, number = (device or "cuda").partition(":")
    number = number or os.environ.get("LOCAL_RANK", "0")
    return int(number) if kind == "cuda" and number.isdecimal() else None


class _Warming:
    """A GPU's first kernels, run beside the import of what needs them.

    An error is nobody's: the engine meets it again, and tells it.
    """

    def __init__(self, device: str | None, config: Mapping[str, Any]):
        self._device, self._config = device, config
        self._thread: Beside[None] | None = None

    def begin(self) -> None:
        """In the thread that imports, when torch is there."""
        from scoremode.startup.gpu_libraries import warmer

        number = _gpu(self._device)
        # A Triton that is broken is no matter for a model that uses none of its kernels.
        with suppress(Exception):
            if number is not None and (warm := warmer(number, self._config)) is not None:
                self._thread = Beside(warm)

    def wait(self) -> None:
        """Before any other thread computes: the order of attention's kernels is the process's."""
        if self._thread is not None:
            self._thread.wait()


def read_ahead(checkpoint: Checkpoint) -> None:
    """Asks the system to read the weight files into its cache, as far as they leave room for others.

    Only where it can be asked (not on macOS). What is read later is the same, and so are its errors.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _AHEAD_SHARE
    if checkpoint.bytes > room:
        return
    for path in checkpoint.shards:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
