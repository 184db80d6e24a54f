"""A command as a process: its signals, its streams, and the one line and exit code that it ends with.

- **Signals.** SIGINT and SIGTERM each end a command, wherever it is, so that whatever it started is
  ended too. What interrupts a library within an import, or within C code that calls back, may come out
  of it as an error of another kind. So it is kept that a signal came: a command that has got one and
  ends with an error was interrupted. Python only notes a signal until the interpreter's next step,
  which may be far away: a template's filter over a long text is one step, and so is a tokenizer's
  regular expression. So SIGINT has the system's own default again as soon as one is noted, and ours
  when it is acted on: a second Ctrl-C that comes in between ends the process at once, as a kill would.
- **Streams.** stdin, stdout or stderr that is closed is opened on the null device, or the next file
  that is opened would be taken for it: a library's message could land in a run's scores. Characters
  that an encoding lacks are escaped as JSON has it, so that a table can be read and a record parsed. An
  output that can't be written is an error that names it; what can't be told on stderr is lost, and the
  exit code still says how the command ended.
- **Endings.** Whatever escapes from a command comes here: its own errors, those of a library, a signal,
  an output that can't be written. With SCOREMODE_DEBUG=1 the traceback is shown before the line.
- **Faults.** A mapped file that became shorter while it was read is an error that names it. Weights and
  states are read from memory-mapped files. Where somebody truncates one, touching its lost pages raises
  SIGBUS, which would end the process without a word. No way leads back into the code that wanted them,
  so the handler says what happened and ends the process, as a kill would: what is on disk is whole, and
  nothing of that page has been computed with. A handler of Python's own (`signal.signal`) only notes a
  signal until the interpreter's next step, which never comes: the same read faults for ever. Ours is
  called by the system in the thread that reads, through ctypes. That may be, since the signal comes
  from that very read, and not from within malloc or the interpreter; where another thread holds the
  interpreter's lock, it waits for its turn.
"""

import codecs
import ctypes
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from scoremode.errors import ScoremodeError, is_debugging, line_of
from scoremode.lib.tasks import signal_again
from scoremode.startup.warmup import missing

__all__ = [
    "Terminated",
    "catch_bus_errors",
    "catching",
    "ending",
    "forget",
    "received",
    "settle_streams",
]

# The name of the handler of characters that an encoding lacks.
_ESCAPES = "scoremode.escape"
# What a shell says of a command that was ended by one of them: 128 and its number.
_CAUGHT = (signal.SIGINT, signal.SIGTERM)
# Bytes of `struct sigaction` before its flags, and the flag that gives the default back: on macOS, and
# on 64-bit Linux (glibc and musl alike).
_FLAGS_AT, _RESETS = (12, 4) if sys.platform == "darwin" else (136, -(1 << 31))
_SA_SIGINFO = 4
# Of siginfo_t: the address, behind three numbers and padding.
_ADDRESS_AT = 16
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

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
    if _received and isinstance(what.exc_value, KeyboardInterrupt):
        signal_again(_received[-1])
    else:
        sys.__unraisablehook__(what)


def settle_streams() -> None:
    """Makes this process's `sys.stdin`, `sys.stdout` and `sys.stderr` as described above."""
    codecs.register_error(_ESCAPES, _escaped)
    # A closed stdout is one that nothing can be written to: who asks for no output, as with --quiet,
    # never notices.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        _open_if_closed(number, flags)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stdout = _text(_Output(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _text(_Messages(2, "wb", closefd=False), sys.stderr)


class _Output(io.FileIO):
    def write(self, data: "bytes | bytearray | memoryview") -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "stdout"
            raise


class _Messages(io.FileIO):
    def write(self, data: "bytes | bytearray | memoryview") -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().write(data)
        except OSError:
            # Nobody can be told of it. A measurement doesn't fail for that.
            return len(data)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    encoding = before.encoding if before is not None else "utf-8"
    # A line at a time on stderr, which is what Python does as well.
    by_line = raw.fileno() == 2 or raw.isatty()
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, errors=_ESCAPES, line_buffering=by_line)


def _open_if_closed(number: int, flags: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        # The system gives the lowest number that is free, which is this one.
        opened = os.open(os.devnull, flags)
        os.set_inheritable(opened, True)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def ending(work: Callable[[], int], *, for_good: bool = False) -> int:
    """The exit code of `work()`, of argparse within it, or of what it raises, when that is told.

    `for_good`: nothing of this process goes on behind it; see `catching`.
    """
    try:
        with catching(for_good=for_good):
            code = _finished(work)
            sys.stdout.flush()
            return code
    # Not hidden: it becomes the line and the exit code. Rust's panics are no Exceptions.
    except BaseException as error:  # noqa: BLE001
        try:
            if is_debugging():
                import traceback

                traceback.print_exception(error)
            return _told(error)
        except MemoryError:
            os.write(2, b"scoremode: error: out of memory\n")
            return 1


def _finished(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as end:
        # Of argparse, which has said why; or of one of several ranks.
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        raise RuntimeError(str(end.code)) from end


def _told(error: BaseException) -> int:
    number = received()
    if number is not None or isinstance(error, KeyboardInterrupt):
        is_term = number == signal.SIGTERM
        # A run that it ended notes what is kept.
        kept = getattr(error, "__notes__", ()) if isinstance(error, KeyboardInterrupt) else ()
        words = ": ".join(("terminated" if is_term else "interrupted", *kept))
        print(f"scoremode: {words}", file=sys.stderr)
        return 143 if is_term else 130
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough.
        return 0
    line, code = _line_of(error)
    print(f"scoremode: error: {line}", file=sys.stderr)
    if isinstance(error, ScoremodeError) and error.see:
        print(f"scoremode: see '{error.see}'", file=sys.stderr)
    return code


def _line_of(error: BaseException) -> tuple[str, int]:
    """An error's line, and the exit code."""
    if isinstance(error, ScoremodeError):
        return line_of(error), error.exit_code
    if isinstance(error, OSError) and error.filename and error.strerror:
        # A file's, or stdout's; those that are of no command's making say all there is to know.
        return str(ScoremodeError(f"{error.filename}: {error.strerror}")), 1
    if isinstance(error, ModuleNotFoundError) and (line := missing(error.name)):
        return line, 1
    try:
        return f"{line_of(error)}; SCOREMODE_DEBUG=1 shows the traceback", 1
    except MemoryError:
        # Where it happened takes more memory than is left.
        return f"out of memory ({type(error).__name__})", 1


class _Action(ctypes.Structure):
    """glibc's and musl's `struct sigaction` on Linux."""

    _fields_ = [
        ("handler", _Handler),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


def catch_bus_errors() -> None:
    """Catches SIGBUS in this process from now on. Elsewhere than on 64-bit Linux nothing changes."""
    if sys.platform == "linux" and sys.maxsize > 2**32:
        action = _Action(_handler, flags=_SA_SIGINFO)
        ctypes.CDLL(None, use_errno=True).sigaction(signal.SIGBUS, ctypes.byref(action), None)


# Never released: several threads may read the lost pages, and the first one ends the process.
_fault = threading.Lock()


def _end_by_fault(number: int, info: int, context: int) -> None:
    _fault.acquire()
    address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
    name = _mapped_at(address)
    what = (
        "SIGBUS, and not from a mapped file: the machine's memory may be at fault"
        if name is None
        else f"{name}: became shorter, or could not be read, while it was in use"
    )
    os.write(2, f"scoremode: error: {what}\n".encode(errors="backslashreplace"))
    os._exit(1)


def _mapped_at(address: int) -> str | None:
    """The file that is mapped there."""
    with Path("/proc/self/maps").open(errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            begin, end = (int(n, 16) for n in fields[0].split("-"))
            if begin <= address < end:
                return fields[5] if len(fields) == 6 and fields[5].startswith("/") else None
    return None


# Here for good: the system keeps its address only.
_handler = _Handler(_end_by_fault)
