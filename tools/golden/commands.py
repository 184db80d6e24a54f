"""Commands of scoremode, in this process; those to be killed are processes of their own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Seconds until a process that is to be killed must have written three passes.
LIMIT = 600.0


class Failed(Exception):
    """A command that did not do what a measurement needs of it, in a line or more."""


@dataclass(frozen=True)
class Printed:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Stream(io.TextIOWrapper):
    """A standard stream that is no terminal and keeps what is written."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n", write_through=True)

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode("utf-8")


def run(words: Sequence[str]) -> Printed:
    """`scoremode WORDS…`, in the current folder."""
    from scoremode.cli.main import main

    out, err = Stream(), Stream()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return Printed(code, out.text(), err.text())


def succeed(words: Sequence[str], codes: Sequence[int] = (0,)) -> str:
    """Runs a command to its end; its standard output. Raises Failed."""
    printed = run(words)
    if printed.code not in codes:
        tail = printed.err.strip()[-600:]
        raise Failed(f"{' '.join(words)}: exit {printed.code}: {tail!r}")
    return printed.out


def kill_in_mid_run(words: Sequence[str], output: Path) -> None:
    """Begins the command and ends it by SIGKILL once some passes are on the disk. Raises Failed."""
    code = None
    for _ in range(3):
        shutil.rmtree(output, ignore_errors=True)
        with subprocess.Popen(
            [sys.executable, "-m", "scoremode", *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            end = time.monotonic() + LIMIT
            while process.poll() is None and time.monotonic() < end:
                if count_of_parts(output) >= 3:
                    break
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        code = process.returncode
        if code == -signal.SIGKILL and count_of_parts(output) >= 3:
            return
    raise Failed(f"{' '.join(words)}: exit {code} before it was killed in mid-run")


def count_of_parts(output: Path) -> int:
    return len(list(output.glob("**/parts/*.parquet")))
