"""SIGINT and SIGTERM: each ends a command, wherever it is, so that whatever it started is ended too.

What interrupts a library within an import, or within C code that calls back, may come out of it as an
error of another kind. So it is kept that a signal came: a command that has got one and ends with an
error was interrupted.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Terminated", "catching", "forget", "received"]

# What a shell says of a command that was ended by one of them: 128 and its number.
_CAUGHT = (signal.SIGINT, signal.SIGTERM)
# Seconds until a signal comes again that was swallowed where nothing can be raised.
_AGAIN = 0.05

_received: list[int] = []


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


def received() -> int | None:
    """The signal that came last within `catching`; None if there was none."""
    return _received[-1] if _received else None


def forget() -> None:
    """Says that what came was this process's own signal to its main thread, and is dealt with."""
    _received.clear()


@contextmanager
def catching(*, for_good: bool) -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt in the main thread, and SIGTERM `Terminated`, in a block.

    `for_good`: the process is a command's alone. Behind the block it only ends, so both are ignored
    from then on: its exit code stands. For a guest in another's process all is as it was before.
    """
    forget()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Who starts a command in the background may have it ignore Ctrl-C.
    caught = [s for s in _CAUGHT if signal.getsignal(s) is not signal.SIG_IGN or not for_good]
    before = [(s, signal.getsignal(s)) for s in caught]
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _swallowed
        for number in caught:
            signal.signal(number, _end)
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before:
            signal.signal(number, signal.SIG_IGN if for_good else handler)


def _end(number: int, _: Any) -> None:
    _received.append(number)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _swallowed(what: "sys.UnraisableHookArgs") -> None:
    """Sends a signal again that came in a finalizer or a callback, which can't raise anything."""
    if _received and isinstance(what.exc_value, KeyboardInterrupt):
        again = threading.Timer(_AGAIN, os.kill, (os.getpid(), _received[-1]))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(what)
