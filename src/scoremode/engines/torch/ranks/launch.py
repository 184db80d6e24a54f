"""Ranks of one machine as processes that the first one starts, by its own command line.

One process a device. They are bound to the first one both ways: a thread here sees one end that
should not, and stops this process's work; each of them reads from a pipe that closes when this process
is gone, however it went, and ends then. So nothing has to wait for a time-out. Nothing of torch is
imported here: the others start before this process spends its seconds on that. (Those that torchrun or
srun starts have lifelines instead: `lifeline`.)
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from scoremode.engines.torch.ranks.places import PLACE, Place
from scoremode.errors import EngineError, is_debugging
from scoremode.lib.processes import LOOK, Leader, end_groups, end_with, ending_of

__all__ = ["Others", "end_with_first"]


class Others:
    """The ranks but the first, running the same command line as this process.

    - `arguments`: what follows the program's name; `size`: how many ranks there are in all.

    - `listener`: the socket that the store will serve, bound before they start.
    - `ended`: the first rank that ended by itself, and what happened to it, of which SIGTERM tells the
      main thread; None while all run.
    """

    def __init__(self, arguments: Sequence[str], size: int):
        self.listener = socket.socket()
        # Only this machine can reach it.
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(size)
        self._reading, self._writing = os.pipe()
        port, key = self.listener.getsockname()[1], secrets.token_hex(16)
        self.place = Place(0, size, "--devices", local=0, here=size, port=port, key=key)
        self._errors: list[IO[bytes]] = []
        self._leaders: list[Leader] = []
        self.ended: tuple[int, str] | None = None
        self._is_over = False
        try:
            for rank in range(1, size):
                self._start(rank, arguments)
        except OSError as error:
            self.end(at_once=True)
            raise EngineError(f"--devices {size}: cannot start a process: {error}") from None
        finally:
            os.close(self._reading)
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self, *, at_once: bool) -> None:
        """Returns when all have ended: by themselves, where they are not to be ended `at_once`."""
        self._is_over = True
        # They have nothing to lose: only the first rank writes.
        end_groups(self._leaders, at_once=at_once)
        for file in self._errors:
            file.close()
        with suppress(OSError):
            os.close(self._writing)
        self.listener.close()

    def _start(self, rank: int, arguments: Sequence[str]) -> None:
        package = str(Path(__file__).resolve().parents[4])
        path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
        place = replace(self.place, rank=rank, local=rank, pipe=self._reading)
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors.append(errors)
        process = subprocess.Popen(
            [sys.executable, "-m", "scoremode", *arguments],
            env=os.environ | {"PYTHONPATH": path, PLACE: json.dumps(asdict(place))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Its last line is told here. Who asks for tracebacks gets all of it.
            stderr=None if is_debugging() else errors,
            pass_fds=[self._reading],
            # A Ctrl-C is for the first rank, which ends the others.
            process_group=0,
        )
        self._leaders.append(Leader(process.pid, process.poll))

    def _watch(self) -> None:
        while not self._is_over:
            for rank, leader in enumerate(self._leaders, 1):
                code = leader.poll()
                # One that ends well was told to.
                if code and not self._is_over:
                    self.ended = rank, f"its process {ending_of(code)}{self._last(rank)}"
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                    return
            time.sleep(LOOK)

    def _last(self, rank: int) -> str:
        """The last line that a rank wrote to stderr."""
        file = self._errors[rank - 1]
        file.seek(0)
        lines = file.read().decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return f": {written[-1][:300]}" if written else ""


def end_with_first(place: Place) -> None:
    """Makes this process end when the first rank, which started it, has."""
    if (pipe := place.pipe) is not None:
        end_with(lambda: os.read(pipe, 1))
