"""The machine that an engine runs on."""

import os
import platform
import re
from pathlib import Path

__all__ = ["cpu_name", "driver_version", "memory_bytes"]


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_bytes() -> int:
    """The bytes of all memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def driver_version() -> str | None:
    """The version of NVIDIA's kernel driver; None where there is none, or the system doesn't say."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"\b\d+(?:\.\d+)+\b", first)
    return found and found[0]
