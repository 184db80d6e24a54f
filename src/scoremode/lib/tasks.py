"""Work in threads of their own, and what threads must not do at the same time: import transformers."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["Task", "importing", "not_collecting", "signal_again"]

T = TypeVar("T")
_ONE_AT_A_TIME = threading.RLock()
# Seconds until a signal comes again that was swallowed.
_AGAIN = 0.05


class Task(Generic[T]):
    """`work()` in a thread, which lets go of it and of all that it holds when it is done."""

    def __init__(self, work: Callable[[], T]):
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result.append(work())
        # Not hidden: `result` raises it in the thread that waits.
        except BaseException as error:  # noqa: BLE001
            self._error = error

    @property
    def is_done(self) -> bool:
        """True where `work` has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Returns when `work` has ended, well or not, or after so many seconds."""
        self._thread.join(seconds)

    def result(self) -> T:
        """Returns what `work` returned, or raises what it raised, when it is done."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]


def signal_again(number: int) -> None:
    """Sends this process a signal again, in a moment: it came in a finalizer or a callback, which can't
    raise anything."""
    again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


@contextmanager
def not_collecting() -> Iterator[None]:
    """Keeps the garbage collector off within the block; also a decorator: `@not_collecting()`.

    Headers make objects by the hundred thousand, none of them garbage: looking for some among them,
    again and again, takes as long as reading them does (0.7 s each for 46,080 quantized experts).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Guards an import of transformers that another thread may be making too.

    torch and transformers import their own modules in circles, which Python can't take apart when two
    threads enter at different places, so one thread imports at a time. Nothing is collected while it
    does: modules are objects by the million, and none is garbage, which saves 0.4 of 3.5 s.
    """
    with _ONE_AT_A_TIME, not_collecting():
        yield
