"""Without Python's garbage collector for a while.

Headers make objects by the hundred thousand, none of them garbage: looking for some among them, again
and again, takes longer than reading them does.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["not_collecting"]


@contextmanager
def not_collecting() -> Iterator[None]:
    """Also a decorator: `@not_collecting()`."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
