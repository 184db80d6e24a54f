"""SIGBUS as an error: a mapped file that became shorter while it was read, named in one line.

Weights and states are read from memory-mapped files. Where somebody truncates one, touching its lost
pages raises SIGBUS, which would end the process without a word. No way leads back into the code that
wanted them, so the handler says what happened and ends the process, as a kill would: what is on disk is
whole, and nothing of that page has been computed with.

A handler of Python's own (`signal.signal`) only notes a signal until the interpreter's next step, which
never comes: the same read faults for ever. This one is called by the system in the thread that reads,
through ctypes. That may be, since the signal comes from that very read, and not from within malloc or
the interpreter; where another thread holds the interpreter's lock, it waits for its turn.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

__all__ = ["catch_bus_errors"]

_SA_SIGINFO = 4
# Of siginfo_t: the address, behind three numbers and padding.
_ADDRESS_AT = 16
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


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


def _end(number: int, info: int, context: int) -> None:
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
_handler = _Handler(_end)
