"""Importing torch and transformers in a thread, as early as it is known that they are needed.

Together they take seconds, and planning needs neither: tokenizing, hashing and reading let other
threads run meanwhile.

A thread must not be left in the middle of an import when the interpreter ends: whoever asked for one
calls `settle` in the end.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module

from scoremode.lib.tasks import Task, importing

__all__ = ["Importing", "libraries"]


class Importing:
    """Imports in a thread of their own, one after the other as they are asked for.

    `patience`: seconds that `settle` waits for the end of an import; None: as long as it takes. Seconds
    are for a process that ends with or without it.
    """

    def __init__(self) -> None:
        self.patience: float | None = None
        self._wanted: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._thread: Task[None] | None = None
        self._is_working = False

    def modules(self, *names: str) -> None:
        """Asks for modules by their full names; returns at once."""
        self.ask(*(partial(import_module, name) for name in names))

    def ask(self, *imports: Callable[[], object]) -> None:
        """Asks for calls that import something; returns at once."""
        with self._lock:
            self._wanted.extend(imports)
            if imports and not self._is_working:
                self._is_working = True
                self._thread = Task(self._work)

    def wait(self) -> None:
        """Returns when all is imported. Raises what an import raised, once; none after it is tried."""
        if self._thread is None:
            return
        try:
            self._thread.result()
        except BaseException:
            # Those asked for after the thread had ended.
            self._wanted.clear()
            raise
        finally:
            self._thread, self._is_working = None, False

    def settle(self) -> None:
        """Lets an import that has begun end, well or not, and forgets those that have not."""
        self._wanted.clear()
        if self._thread is not None:
            # Ctrl-C within an import of another thread can leave that module's lock taken for good.
            self._thread.wait(self.patience)
            self._thread, self._is_working = None, False

    def _work(self) -> None:
        with importing():
            while True:
                with self._lock:
                    if not self._wanted:
                        self._is_working = False
                        return
                    wanted = self._wanted.popleft()
                try:
                    wanted()
                except BaseException:
                    self._wanted.clear()
                    raise


# The process's, as its modules are.
libraries = Importing()
