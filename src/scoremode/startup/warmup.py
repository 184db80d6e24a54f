"""The start of a run: checks its installation, then loads all it needs before its first layer computes.

Importing torch and transformers, opening the GPU, reading and hashing the weights, tokenizing: each
takes seconds, most of them outside Python's lock. Planning goes on in the thread that called, so that
its errors come as if it were alone; everything else runs beside it, and nothing is left running when
the block of `preparing` ends. Every command has this module first, so it imports nothing heavy itself.
"""

import ctypes
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.errors import EngineError
from scoremode.lib.tasks import Task, importing

if TYPE_CHECKING:
    from scoremode.checkpoint.files import Checkpoint
    from scoremode.engines.base import Options


_NEEDED = (
    "huggingface_hub", "msgspec", "numpy", "pyarrow", "regex", "safetensors", "tokenizers", "torch",
    "transformers", "yaml",
)  # fmt: skip
# A package that no run needs.
_ELSEWHERE = "shtab"
# Packages that are called otherwise than what is imported of them.
_CALLED = {"yaml": "pyyaml"}
# torch, transformers and Arrow on a CPU take 2.4 GB where nothing keeps them from it (2026-11), and
# with less than 1.4 GB they hang or crash.
_LEAST_ADDRESSES = 2 << 30
# Of the kernels that are run for their libraries alone.
_ROWS = 64


def check_installation() -> None:
    """Raises EngineError where a package is missing, or the address space too small for all.

    `pip install --no-deps`, which vLLM's releases may ask for, leaves the packages to the user. A limit
    on the address space that the libraries alone don't fit into ends in their C code, anywhere and
    anyhow: a crash, an import that fails halfway, a thread that waits for one that never started.
    """
    for name in _NEEDED:
        if find_spec(name) is None:
            raise EngineError(missing(name) or name)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESSES:
        raise EngineError(
            f"ulimit -v {limit >> 10}: the libraries alone take {_LEAST_ADDRESSES >> 30} GiB of "
            "address space, and a model's files as much as they are long"
        )


def missing(module: str | None) -> str | None:
    """The message for a module that can't be found; None if it is of no package that is needed."""
    name = (module or "").partition(".")[0]
    if name not in (*_NEEDED, _ELSEWHERE) or find_spec(name) is not None:
        return None
    package = _CALLED.get(name, name)
    return f"the package {package} is not installed: pip install {package}"


def untested() -> Iterator[str]:
    """A line for each installed package that is newer, or older, than scoremode's metadata allows: what
    another package wants, and `--no-deps`, may install it all the same."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("scoremode") or ()
    except metadata.PackageNotFoundError:
        # Run from its source, which promises nothing.
        return
    for wanted in map(Requirement, lines):
        if wanted.marker is not None:
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            tested = ",".join(sorted(str(wanted.specifier).split(","), reverse=True))
            yield f"{wanted.name} {version}: scoremode was tested with {tested}"


class Importing:
    """Imports in a thread of their own, one after the other as they are asked for.

    torch and transformers together take seconds, and planning needs neither: tokenizing, hashing and
    reading let other threads run meanwhile. A thread must not be left in the middle of an import when
    the interpreter ends: whoever asked for one calls `settle` in the end.

    `patience`: seconds that `settle` waits for the end of an import; None: as long as it takes. Seconds
    are for a process that ends with or without it.
    """

    def __init__(self) -> None:
        self.patience: float | None = None
        self._wanted: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._thread: Task[None] | None = None
        self._is_working = False

    def modules(self, *names: str) -> None:
        """Asks for modules by their full names; returns at once."""
        self.ask(*(partial(import_module, name) for name in names))

    def ask(self, *imports: Callable[[], object]) -> None:
        """Asks for calls that import something; returns at once."""
        with self._lock:
            self._wanted.extend(imports)
            if imports and not self._is_working:
                self._is_working = True
                self._thread = Task(self._work)

    def wait(self) -> None:
        """Returns when all is imported. Raises what an import raised, once; none after it is tried."""
        if self._thread is None:
            return
        try:
            self._thread.result()
        except BaseException:
            # Those asked for after the thread had ended.
            self._wanted.clear()
            raise
        finally:
            self._thread, self._is_working = None, False

    def settle(self) -> None:
        """Lets an import that has begun end, well or not, and forgets those that have not."""
        self._wanted.clear()
        if self._thread is not None:
            # Ctrl-C within an import of another thread can leave that module's lock taken for good.
            self._thread.wait(self.patience)
            self._thread, self._is_working = None, False

    def _work(self) -> None:
        with importing():
            while True:
                with self._lock:
                    if not self._wanted:
                        self._is_working = False
                        return
                    wanted = self._wanted.popleft()
                try:
                    wanted()
                except BaseException:
                    self._wanted.clear()
                    raise


# The process's, as its modules are.
libraries = Importing()


@contextmanager
def preparing(
    checkpoint: "Checkpoint", options: "Options", *, hashes: bool = True
) -> Iterator[None]:
    """Imports, opens and reads beside its block what an engine of `options` needs.

    `context.import_engine` waits for the imports, `checkpoint.hash_files` for the hashes; without
    `hashes` for a process that records none.
    """
    beside: list[Task[None]] = []

    def wait() -> None:
        for each in beside:
            each.wait()

    def warm(gpu: int, config: Mapping[str, Any]) -> None:
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


def warmer(gpu: int, config: Mapping[str, Any]) -> Callable[[], None] | None:
    """Gives a call for another thread, which imports nothing: a GPU's first kernels, whose results are
    thrown away. None without that GPU.

    cuBLAS, cuDNN and Triton are each loaded when they are used first; Triton also reads all of its own
    library, 400 MB, for the name of its cache. Together that is a good half second, most of it outside
    Python's lock. `config`: a model's, for the width of the norm that is needed first.
    """
    import torch

    from scoremode.engines.torch.model.attention import attention_backends
    from scoremode.lib.fallback import is_missing

    if gpu >= torch.cuda.device_count():
        return None
    norm = None
    if is_missing() is None:
        from scoremode.engines.torch.fused.kernels import rms_norm

        norm = rms_norm
    width = config.get("hidden_size")
    width = width if type(width) is int else 4096
    device = torch.device("cuda", gpu)

    def warm() -> None:
        # Triton launches on the thread's current device.
        with torch.no_grad(), torch.cuda.device(device):
            x = torch.ones((1, 1, 128, 128), dtype=torch.bfloat16, device=device)
            torch.mm(x[0, 0], x[0, 0])
            torch.mm(x[0, 0], x[0, 0], out_dtype=torch.float32)
            with attention_backends(device):
                torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
            if norm is not None:
                rows = torch.ones((1, _ROWS, width), dtype=torch.bfloat16, device=device)
                norm(rows, rows[0, 0], 1e-5, 0)
            torch.cuda.synchronize(device)

    return warm
