"""Child processes that end with this one, whatever happens.

Each child leads a process group, so that what it starts itself (vLLM's workers, say) can be ended
with it. `end_groups` ends them from here, after some seconds of grace. A child whose parent is killed
outright ends its own group: `end_with` waits, in a thread there, for its parent's end of a pipe to
close.

`run_apart` is the plain case: one call of a function in a child, whose result, messages and errors come
back. A library may rebind threads, keep process-wide state or start processes, and leaves none of it
here. The same in another environment's Python is `lib.interpreters`. The torch engine's ranks
(`engines.torch.ranks.places`) are the other: whole command lines.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from scoremode import errors
from scoremode.errors import EngineError, ScoremodeError, is_debugging, line_of
from scoremode.lib.tasks import signal_again

__all__ = [
    "LOOK",
    "Leader",
    "answer",
    "end_groups",
    "end_with",
    "ending_of",
    "no_interrupts",
    "outcome",
    "run_apart",
]

# Seconds between looks at whether a process has ended.
LOOK = 0.05
# Seconds in which a process may end by itself: engines stop their own workers then.
_GRACE = 10.0


@dataclass(frozen=True)
class Leader:
    """A child that leads a process group, or will when it has started.

    - `poll`: gives its exit code, or None while it runs.
    """

    pid: int
    poll: Callable[[], int | None]


def end_groups(leaders: Sequence[Leader], *, at_once: bool = False) -> None:
    """Ends the children and all that they have started; returns when the children have ended.

    They may end by themselves first, unless it is `at_once`: 10 seconds for all together.
    """
    deadline = time.monotonic() + (0 if at_once else _GRACE)
    while any(leader.poll() is None for leader in leaders) and time.monotonic() < deadline:
        time.sleep(LOOK)
    for leader in leaders:
        # Early in its life it has no group yet.
        if leader.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(leader.pid, signal.SIGKILL)
        # Also when it has ended: as long as anything is in its group, the number is taken.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, signal.SIGKILL)
        while leader.poll() is None:
            time.sleep(LOOK)


def end_with(parent: Callable[[], object]) -> None:
    """Makes this process, which leads a group, end with the group when `parent()` returns.

    `parent`: waits until the parent's end of a pipe is closed, as it is however the parent ends.
    """

    def wait() -> None:
        parent()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def ending_of(code: int | None) -> str:
    """Says how a process ended that did not say so itself, by its exit code."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = ", as a system out of memory does" if name == "SIGKILL" else ""
        return f"was ended by {name}{why}"
    return f"ended with exit code {code} and without a result"


def run_apart(
    label: str, work: Callable[..., Any], *args: Any, receive: Callable[[Any], None]
) -> Any:
    """Calls `work(send, *args)` in a child process, and returns what it returns.

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

    def start() -> Leader:
        process.start()
        theirs.close()
        assert process.pid is not None
        # It asks the system: a sentinel or a pipe's end stays open in what the child started.
        return Leader(process.pid, lambda: process.exitcode)

    return outcome(label, start, ours, ours.recv, receive)


def outcome(
    label: str,
    start: Callable[[], Leader],
    connection: Connection,
    read: Callable[[], Sequence[Any]],
    receive: Callable[[Any], None],
) -> Any:
    """Starts a child, gives its messages to `receive`, and returns its result; it has ended then, and
    so has all that it started.

    - `connection`: to the child, which does its work by `answer`; `read`: takes one message of it.

    Raises what the child said it failed of, and EngineError for an end without a result.
    """
    leader = None
    try:
        # The child is in our group until it has its own: a Ctrl-C meanwhile waits until it can be
        # answered.
        with no_interrupts():
            leader = start()
        last = _last_message(leader, connection, read, receive)
    except BaseException:
        if leader is not None and leader.poll() is None:
            os.kill(leader.pid, signal.SIGINT)
        raise
    finally:
        if leader is not None:
            end_groups([leader])
        connection.close()
    match last:
        case ["result", value]:
            return value
        case ["error", name, text]:
            raise getattr(errors, name)(f"{label}: {text}")
    assert leader is not None
    raise EngineError(f"{label}: its process {ending_of(leader.poll())}")


def _last_message(
    leader: Leader,
    connection: Connection,
    read: Callable[[], Sequence[Any]],
    receive: Callable[[Any], None],
) -> Sequence[Any]:
    """Waits for the result or the error; () for a child that has ended without either."""
    while True:
        has_ended = leader.poll() is not None
        try:
            if connection.poll(0 if has_ended else LOOK):
                message = read()
            elif has_ended:
                return ()
            else:
                continue
        except (EOFError, ConnectionResetError):
            return ()
        if message[0] != "message":
            return message
        receive(message[1])


@contextmanager
def no_interrupts() -> Iterator[None]:
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


def _swallowed(what: "sys.UnraisableHookArgs") -> None:
    if isinstance(what.exc_value, KeyboardInterrupt):
        signal_again(signal.SIGINT)
    else:
        sys.__unraisablehook__(what)


def _child(connection: Connection, pickled: bytes) -> None:
    os.setpgid(0, 0)

    def work(send: Callable[[Any], None]) -> Any:
        called, args = pickle.loads(pickled)  # noqa: S301 (our own)
        return called(send, *args)

    answer(work, connection, connection.send)


def answer(
    work: Callable[[Callable[[Any], None]], Any],
    connection: Connection,
    send: Callable[[Sequence[Any]], None],
) -> None:
    """Does the work of a child that leads a group: its messages, and its result or error, are sent.

    - `connection`: to the parent, which sends nothing from now on.
    - `work`: called with a function that sends a message; `send`: sends one of this module's.
    """
    # There is something to read when the parent's end is closed.
    end_with(lambda: connection.poll(None))
    os.dup2(2, 1)
    sys.unraisablehook = _swallowed
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        result = work(lambda value: send(("message", value)))
        send(("result", result))
    except KeyboardInterrupt:
        return
    except ScoremodeError as error:
        send(("error", type(error).__name__, str(error)))
    # Not hidden: the parent raises it, as the one line that a command ends with.
    except Exception as error:  # noqa: BLE001
        if is_debugging():
            traceback.print_exception(error)
        send(("error", "EngineError", line_of(error)))
    sys.stdout.flush()
