"""Endings of a command: with an exit code, and with one line where that is not 0.

Whatever escapes from a command comes here: its own errors, those of a library, a signal, an output that
can't be written. With SCOREMODE_DEBUG=1 the traceback is shown before the line.
"""

import os
import sys
from collections.abc import Callable

from scoremode.cli.process.signals import catching, received
from scoremode.errors import ScoremodeError, is_debugging, line_of
from scoremode.startup.warmup import missing

__all__ = ["ending"]


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
        import signal

        is_term = number == signal.SIGTERM
        print("scoremode: terminated" if is_term else "scoremode: interrupted", file=sys.stderr)
        return 143 if is_term else 130
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough.
        return 0
    line, code = _line_of(error)
    print(f"scoremode: error: {line}", file=sys.stderr)
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
