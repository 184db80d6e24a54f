"""Importing torch and transformers in a thread, as early as it is known that they are needed.

Together they take seconds, and planning needs neither: tokenizing, hashing and reading let other
threads run meanwhile. Both import their own modules in circles, which Python can't take apart when
two threads enter at different places, so one thread imports at a time. Nothing is collected while it
does: modules are objects by the million and none of them garbage, which saves a fifth of the time.

A thread must not be left in the middle of an import when the interpreter ends: whoever asked for one
calls `settle` in the end.
"""

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from scoremode.background.beside import Beside
from scoremode.background.garbage import not_collecting

__all__ = ["Importing", "import_model_class", "importing", "libraries"]

_ONE_AT_A_TIME = threading.RLock()
# Seconds for the end of an import, where the process ends with or without it.
_PATIENCE = 5.0


@contextmanager
def importing() -> Iterator[None]:
    """Around an import of transformers that a thread of `Importing` may be making too."""
    with _ONE_AT_A_TIME, not_collecting():
        yield


class Importing:
    """Imports in a thread of their own, one after the other as they are asked for.

    `freezes`: the garbage collector never looks at what is there when they are done, which takes it
    0.2 s each time, and `settle` has an end. For a program that owns its process: another's may hold
    garbage of others too, and does not end by ending the process.
    """

    def __init__(self) -> None:
        self.freezes = False
        self._wanted: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._thread: Beside[None] | None = None
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
                self._thread = Beside(self._work)

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
            self._thread.wait(_PATIENCE if self.freezes else None)
            self._thread, self._is_working = None, False

    def _work(self) -> None:
        with importing():
            while True:
                with self._lock:
                    if not self._wanted:
                        if self.freezes:
                            gc.freeze()
                        self._is_working = False
                        return
                    wanted = self._wanted.popleft()
                try:
                    wanted()
                except BaseException:
                    self._wanted.clear()
                    raise


def import_model_class(model_type: str) -> None:
    """Imports what transformers builds a model with, and the module of a model type, if it has one.

    The module's name is the library's convention. Nothing depends on it: what is not found here is
    found, or refused, when the model is built.
    """
    import_module("transformers.models.auto.modeling_auto")
    import_module("transformers.modeling_utils")
    name = model_type.replace("-", "_")
    if name.isidentifier() and find_spec(f"transformers.models.{name}") is not None:
        module = f"transformers.models.{name}.modeling_{name}"
        if find_spec(module) is not None:
            import_module(module)


# The process's, as its modules are.
libraries = Importing()
