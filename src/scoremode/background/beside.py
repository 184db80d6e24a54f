"""A call in a thread of its own, whose result or error is there when it is asked for."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Beside"]

T = TypeVar("T")


class Beside(Generic[T]):
    """`work()` in a thread of its own, which lets go of it and of what it holds when it is done."""

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
