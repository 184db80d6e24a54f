"""The lock that a process has on the run it is working on, which ends with it."""

import fcntl
import time
from pathlib import Path
from typing import IO

__all__ = ["LOCK", "is_held", "take"]

LOCK = ".lock"
# Seconds that taking it tries again: whoever only looks holds it for some microseconds.
_PATIENCE, _PAUSE = 0.2, 0.01


def take(lock: IO[str] | int) -> None:
    """Takes the open file or folder for this process alone.

    Raises BlockingIOError where another has it, OSError where it can't be locked.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def is_held(folder: Path) -> bool:
    """Tells whether a process works on the run in `folder`. Nothing is written, and no process that
    begins to work on it meanwhile is turned away.

    Raises OSError where the lock's file is there and can't be read.
    """
    try:
        with (folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
