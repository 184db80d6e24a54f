"""Turns off Python's garbage collector for a while.

Headers make objects by the hundred thousand, none of them garbage: looking for some among them, again
and again, takes as long as reading them does (0.7 s each for 46,080 quantized experts).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["not_collecting"]


@contextmanager
def not_collecting() -> Iterator[None]:
    """Keeps the garbage collector off within the block; also a decorator: `@not_collecting()`."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
