"""The command line as a process of its own, which may be quick where a guest in another's may not.

- Ctrl-C is answered from its first line on, so nothing is imported before that which Python has not
  imported itself; and what fails while the rest is imported ends as any other error does.
- The end is the process's end. Taking those modules apart, one by one, takes an interpreter longer
  than a short run takes to score; what must happen at an end (threads, exit handlers, the output)
  has happened when it would begin.
"""

import atexit
import os
import sys

__all__ = ["program"]

# Seconds that the process's end waits for an import of another thread.
_PATIENCE = 5.0


def program() -> int:
    """`main`, in a process that is the command's alone; returns its exit code."""
    try:
        return _program()
    except KeyboardInterrupt:
        # Before signals were caught, and nothing had been begun.
        os.write(2, b"scoremode: interrupted\n")
        os._exit(130)


def _program() -> int:
    from scoremode.cli.process import ending

    code: list[int] = []

    def end() -> None:
        if not code or sys.gettrace() or sys.getprofile():
            # An exception is on its way, or a debugger's reader waits: the interpreter's own end.
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            # Nobody reads it any more, or there is no room for it, which has been said.
            pass
        os._exit(code[0])

    # The handler registered first is called last: those of all libraries are still to come.
    atexit.register(end)
    code.append(ending(_command, for_good=True))
    return code[0]


def _command() -> int:
    from scoremode.cli.process import catch_bus_errors, settle_streams

    settle_streams()
    catch_bus_errors()
    from scoremode.cli.main import command
    from scoremode.startup.warmup import libraries

    libraries.patience = _PATIENCE
    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(program())
