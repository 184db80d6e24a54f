"""Waits for other processes and threads by what they do: how long they take is the machine's affair."""

import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Seconds after which something hangs, on any machine.
HANG = 900.0


def wait_for(holds: Callable[[], Any], process: subprocess.Popen | None = None) -> Any:
    """The first true value of `holds`. Fails when `process` has ended before that."""
    end = time.monotonic() + HANG
    while not (value := holds()):
        if process is not None and process.poll() is not None and not (value := holds()):
            raise AssertionError(f"the process ended before that: {process.communicate()}")
        if value:
            break
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.01)
    return value


def is_running(process: int) -> bool:
    """Whether a process does. A zombie, which only its parent can clear away, has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_ends(processes: Iterable[int]) -> None:
    wait_for(lambda: not any(map(is_running, processes)))
