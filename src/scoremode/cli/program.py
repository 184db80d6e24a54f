"""The command line as a process of its own, which may be quick where a guest in another's may not.

- What was imported is frozen: the garbage collector looks no more at the 2,500 modules of torch and
  transformers.
- The end is the process's end. Taking those modules apart, one by one, takes an interpreter longer
  than a short run takes to score; what must happen at an end (threads, exit handlers, the output)
  has happened when it would begin.
"""

import atexit
import gc
import os
import sys

from scoremode.checkpoint.libraries import libraries
from scoremode.cli.main import main

__all__ = ["program"]


def program() -> int:
    """`main`, in a process that is the command's alone; returns its exit code."""
    code: list[int] = []

    def end() -> None:
        if not code or sys.gettrace() or sys.getprofile():
            # An exception is on its way, or a debugger's reader waits: the interpreter's own end.
            gc.unfreeze()
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it any more; the interpreter knows what to do
            return
        os._exit(code[0])

    # The handler registered first is called last: those of all libraries are still to come.
    atexit.register(end)
    libraries.freezes = True
    try:
        code.append(main())
    except SystemExit as error:  # argparse's, or one of several ranks'
        if isinstance(error.code, int):
            code.append(error.code)
        raise
    return code[0]
