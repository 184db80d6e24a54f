"""Reading all bytes of large files beside a run; hashing lets other threads compute."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Beside"]

T = TypeVar("T")


class Beside(Generic[T]):
    """`work()` in a thread of its own."""

    def __init__(self, work: Callable[[], T]):
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        # Not hidden: `result` raises it in the thread that waits.
        except BaseException as error:  # noqa: BLE001
            self._error = error

    @property
    def is_done(self) -> bool:
        """Whether `work` has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Returns when `work` has ended, well or not."""
        self._thread.join()

    def result(self) -> T:
        """What `work` returned or raised, when it is done."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]
