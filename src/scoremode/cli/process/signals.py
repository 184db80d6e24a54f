"""SIGINT and SIGTERM: each ends a command, wherever it is, so that whatever it started is ended too.

What interrupts a library within an import, or within C code that calls back, may come out of it as an
error of another kind. So it is kept that a signal came: a command that has got one and ends with an
error was interrupted.

Python only notes a signal until the interpreter's next step, which may be far away: a template's filter
over a long text is one step, and so is a tokenizer's regular expression. So SIGINT has the system's own
default again as soon as one is noted, and ours when it is acted on: a second Ctrl-C that comes in
between ends the process at once, as a kill would.
"""

import ctypes
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
# Bytes of `struct sigaction` before its flags, and the flag that gives the default back: on macOS, and
# on 64-bit Linux (glibc and musl alike).
_FLAGS_AT, _RESETS = (12, 4) if sys.platform == "darwin" else (136, -(1 << 31))

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
    from then on, and its exit code stands; after a first Ctrl-C a second ends it at once, with the
    code that it has anyway. For a guest in another's process all is as it was before.
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
            _catch(number)
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before:
            is_second = number == signal.SIGINT and number in _received
            late = signal.SIG_DFL if is_second else signal.SIG_IGN
            signal.signal(number, late if for_good else handler)


def _catch(number: int) -> None:
    """Has `_end` called for a signal; of a SIGINT that comes before that the system's default."""
    signal.signal(number, _end)
    # SIGTERM is also what a thread here tells the main one of a rank that ended, and others may, too.
    if number != signal.SIGINT or sys.maxsize < 1 << 32:
        return
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    libc.sigaction(number, None, action)
    ctypes.c_int.from_buffer(action, _FLAGS_AT).value |= _RESETS
    libc.sigaction(number, action, None)


def _end(number: int, _: Any) -> None:
    _catch(number)
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
