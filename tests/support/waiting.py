"""Waits for other processes and threads by what they do: how long they take is the machine's affair."""

import signal
import subprocess
import sys
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


_KILLED = """
import os, signal, sys
from pathlib import Path
folder, parts, pattern = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def hook(event, arguments):
    if event == "os.rename" and os.fspath(arguments[1]).startswith(os.fspath(folder)):
        if len(list(folder.glob(pattern))) >= parts and list(folder.rglob("record.json")):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from scoremode.cli.main import main
sys.exit(main(sys.argv[4:]))
"""


def run_killed(
    arguments: list[str], folder: Path, parts: int, pattern: str = "*/parts/*.parquet"
) -> None:
    """Runs a command of scoremode's that is killed, as by kill -9, at the first file that it names
    in `folder` when its record and so many parts are there."""
    command = [sys.executable, "-c", _KILLED, str(folder), str(parts), pattern, *arguments]
    ended = subprocess.run(command, timeout=HANG, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, f"it was to be killed: {ended}"
