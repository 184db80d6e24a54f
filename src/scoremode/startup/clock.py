"""The seconds of a run's stages, one after the other, from the process's start on.

What a user waits for before the first line of ours runs (the interpreter, a container's start) counts
as well, so that the stages add up to what a watch beside the terminal shows. Nothing heavy is imported
here: a command has its clock before anything else.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

_IMPORTED = time.perf_counter()

# Called with the name of a stage that begins, and with what it is of ("" for the run itself).
Tell = Callable[[str, str], None]


class StageClock:
    """Seconds by stage; `start` is the first.

    - `before`: seconds that had gone by when it was made, such as `since_exec()`.
    - `tell`: gets every stage that begins, to show it.
    """

    def __init__(self, before: float = 0.0, tell: Tell = lambda *_: None):
        self.tell = tell
        self._stages = {"start": before}
        self._stage = "start"
        self._last = time.perf_counter()

    def begin(self, stage: str) -> None:
        """Ends the stage before, and begins this one, or goes on with it."""
        self._count()
        self._stage = stage
        self.tell(stage, "")

    def to_json(self) -> dict[str, float]:
        """Seconds by stage up to now, in the order in which they began, and their `total`."""
        self._count()
        total = sum(self._stages.values())
        return {name: round(s, 3) for name, s in (self._stages | {"total": total}).items()}

    def _count(self) -> None:
        now = time.perf_counter()
        self._stages[self._stage] = self._stages.get(self._stage, 0.0) + now - self._last
        self._last = now


def since_exec() -> float:
    """Seconds since this process was started, or, where the system doesn't say, since this import."""
    imported = time.perf_counter() - _IMPORTED
    try:
        # The 22nd field, in ticks since the machine's start; the second may hold spaces and brackets.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(imported, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError, IndexError, ValueError):
        return imported
