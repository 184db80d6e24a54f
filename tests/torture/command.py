"""One command of scoremode as a process, watched from outside, and what any ending must keep to."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["LEFT", "LIMIT", "Ended", "Failure", "Failures", "check_ending", "run"]

# Seconds that a command of this campaign may take; on a quiet core most take three.
LIMIT = 900.0
# Seconds in which what it started has to be gone behind it.
LEFT = 120.0
_MARK = "SCOREMODE_TORTURE_CASE"


class Failure(Exception):
    """What an ending, a folder or a number showed that must not be."""


class Failures(Exception):
    """Of a turn that makes several attempts: each one's failure."""

    def __init__(self, each: Sequence[str]):
        super().__init__("; ".join(each))
        self.each = each


@dataclass(frozen=True)
class Ended:
    """An ended command: exit code (as a shell gives it), what it wrote, and its words."""

    code: int
    out: str
    err: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"exit {self.code} of {' '.join(self.words)}: {self.err.strip()[-1500:]!r}"


def run(
    words: Sequence[str],
    folder: Path,
    *,
    meanwhile: Callable[["subprocess.Popen[str]"], None] = lambda _: None,
    before: Sequence[str] = (),
    program: Sequence[str] = ("-m", "scoremode"),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    """Runs `scoremode WORDS…` in `folder`; `meanwhile` is called with the process once it has begun.

    `before`: a command that the whole is an argument of; `program`: what Python runs instead;
    `environment`: added to this process's. Raises Failure where it hangs, or leaves a process behind.
    """
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [*before, sys.executable, *program, *words],
        cwd=folder,
        # One thread: the number of threads may move a score.
        env=os.environ | {"OMP_NUM_THREADS": "1", _MARK: mark} | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    ) as process:
        try:
            meanwhile(process)
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            _kill(mark)
            raise Failure(f"{' '.join(words)}: still runs after {LIMIT:.0f} s") from None
        except BaseException:
            _kill(mark)
            raise
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    ended = Ended(code, out, err, tuple(words))
    end = time.monotonic() + LEFT
    while left := _processes(mark):
        if time.monotonic() > end:
            _kill(mark)
            raise Failure(f"processes {left} are left behind: {ended}")
        time.sleep(0.05)
    return ended


def check_ending(ended: Ended, *codes: int) -> None:
    """Raises Failure unless the command ended with one of `codes`, and said so in plain lines."""
    if ended.code not in codes:
        raise Failure(f"not {codes}: {ended}")
    # The line of an error that nobody expected tells how to see its traceback.
    for word in ("Traceback", "SCOREMODE_DEBUG=1", "Aborted", "core dumped", "terminate called"):
        if word in ended.err:
            raise Failure(f"{word!r} on stderr: {ended}")
    strange = [x for x in ended.err.splitlines() if x.strip() and not x.startswith("scoremode: ")]
    if strange:
        raise Failure(f"not a line of ours {strange[0]!r}: {ended}")
    refusals = [x for x in ended.err.splitlines() if x.startswith("scoremode: error: ")]
    if ended.code in (1, 2) and len(refusals) != 1:
        raise Failure(f"{len(refusals)} lines say why: {ended}")


def _processes(mark: str) -> list[int]:
    """The living processes that a command started, by a word in their environment."""
    word, found = f"{_MARK}={mark}".encode(), []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            if word in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or another user's
    return found


def _kill(mark: str) -> None:
    for process in _processes(mark):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
