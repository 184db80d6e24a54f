"""Work in a process of its own that ends with us, whatever happens.

A library may rebind threads, keep process-wide state, or start processes itself. Its work runs in a
spawned child that leads a process group: when the work is done, fails, or is interrupted, the group
is ended; and should this process be killed outright, the child sees its pipe close and ends the group
itself. What fails there becomes one error here.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from scoremode import errors
from scoremode.errors import EngineError, ScoremodeError
from scoremode.unexpected import is_debugging, line_of

__all__ = ["ending_of", "run_apart"]

# Seconds in which a process may end by itself: engines stop their own workers then.
_GRACE = 10.0
# Seconds between looks at whether it has.
_LOOK = 0.05


def run_apart(
    label: str, work: Callable[..., Any], *args: Any, receive: Callable[[Any], None]
) -> Any:
    """`work(send, *args)` in a child process, and what it returns.

    - `label`: what errors name it by.
    - `work`: of an importable module, as `multiprocessing` wants it; `args` and the result are
      pickled. `send` takes any picklable message.
    - `receive`: gets each message, here, while the work goes on.

    What the child prints goes to stderr. Raises the ScoremodeError that `work` raised, and EngineError
    for any other end without a result, each with `label` in front.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # Unpickling imports what the work is of. What fails then is told like the rest.
    pickled = pickle.dumps((work, args))
    process = context.Process(target=_child, args=(theirs, pickled), name=label)
    try:
        # The child is in our group until it has its own: a Ctrl-C meanwhile waits until it can be
        # answered.
        with _no_interrupts():
            process.start()
        theirs.close()
        last = _last_message(process, ours, receive)
    except BaseException:
        if process.pid is not None and process.exitcode is None:
            os.kill(process.pid, signal.SIGINT)
        raise
    finally:
        _end(process)
        ours.close()
    match last:
        case ("result", value):
            return value
        case ("error", name, text):
            raise getattr(errors, name)(f"{label}: {text}")
    raise EngineError(f"{label}: its process {ending_of(process.exitcode)}")


def _last_message(
    process: SpawnProcess, connection: Connection, receive: Callable[[Any], None]
) -> tuple[Any, ...]:
    """A result or an error, or nothing from a child that has ended without either."""
    while True:
        # `exitcode` asks the system: a sentinel or a pipe's end stays open in what the child started.
        has_ended = process.exitcode is not None
        try:
            if connection.poll(0 if has_ended else _LOOK):
                message = connection.recv()
            elif has_ended:
                return ()
            else:
                continue
        except (EOFError, ConnectionResetError):
            return ()
        if message[0] != "message":
            return message
        receive(message[1])


def ending_of(code: int | None) -> str:
    """How a process ended that did not say so itself, by its exit code."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = ", as a system out of memory does" if name == "SIGKILL" else ""
        return f"was ended by {name}{why}"
    return f"ended with exit code {code} and without a result"


def _end(process: SpawnProcess) -> None:
    """Waits for the child, and ends it and its group where it takes too long."""
    if process.pid is None:
        return
    deadline = time.monotonic() + _GRACE
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(_LOOK)
    process.kill()
    # Before that it may not have had a group. As long as anything is in it, its number is taken.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Holds SIGINT back, here and in processes started inside."""
    # Else `start` starts it, and lets SIGINT through again when it has.
    resource_tracker.ensure_running()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(connection: Connection, pickled: bytes) -> None:
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    os.dup2(2, 1)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        work, args = pickle.loads(pickled)  # noqa: S301 (our own)
        result = work(lambda value: connection.send(("message", value)), *args)
        connection.send(("result", result))
    except KeyboardInterrupt:
        return
    except ScoremodeError as error:
        connection.send(("error", type(error).__name__, str(error)))
    # Not hidden: the parent raises it, as the one line that a command ends with.
    except Exception as error:  # noqa: BLE001
        if is_debugging():
            traceback.print_exception(error)
        connection.send(("error", "EngineError", line_of(error)))
    sys.stdout.flush()


def _end_with_parent(connection: Connection) -> None:
    # The parent sends nothing: there is something to read when its end is closed.
    connection.poll(None)
    os.killpg(0, signal.SIGKILL)
