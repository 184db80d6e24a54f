"""Work for child processes, which find it here by its name."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scoremode.errors import ProtocolError

Send = Callable[[Any], None]


def double(send: Send, n: int) -> int:
    for i in range(n):
        send(i)
    print("to stdout")
    sys.stdout.flush()
    return 2 * n


def refuse(send: Send) -> None:
    raise ProtocolError("stride 0: must be at least 1")


def break_down(send: Send) -> None:
    raise RuntimeError("two\n  lines")


def exit_with(send: Send, code: int) -> None:
    os._exit(code)


def kill_itself(send: Send) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def start_another_and(send: Send, then: str, folder: str) -> None:
    """Starts a process that would sleep for long, tells both ids, and goes on as `then` says."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    send((os.getpid(), child.pid))
    Path(folder, "ids").write_text(f"{os.getpid()} {child.pid}")
    if then == "sleep":
        time.sleep(600)
    if then == "fail":
        raise RuntimeError("failed")
    if then == "exit":
        os._exit(0)
    if then == "ignore":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(600)


def variable(send: Send, name: str) -> str | None:
    return os.environ.get(name)


def set_of(send: Send, n: int) -> set[int]:
    return set(range(n))
