"""stdin, stdout and stderr of a program, whatever it was started with.

- One that is closed is opened on the null device, or the next file that is opened would be taken for
  it: a library's message could land in a run's scores.
- What an encoding lacks is escaped as JSON has it, so that a table can be read and a record parsed.
- An output that can't be written is an error that names it; what can't be told on stderr is lost, and
  the exit code still says how the command ended.
"""

import codecs
import io
import os
import sys
from typing import TextIO

__all__ = ["settle_streams"]

_ESCAPES = "scoremode.escape"


def settle_streams() -> None:
    """Makes `sys.stdin`, `sys.stdout` and `sys.stderr` of this process what is said above."""
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
