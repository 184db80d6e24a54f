"""The lock under which transformers is imported.

torch and transformers import their own modules in circles, which Python can't take apart when two
threads enter at different places, so one thread imports at a time. Nothing is collected while it does:
modules are objects by the million and none of them garbage, which saves 0.4 of 3.5 s.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from scoremode.background.garbage import not_collecting

__all__ = ["importing"]

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def importing() -> Iterator[None]:
    """Guards an import of transformers that another thread may be making too."""
    with _ONE_AT_A_TIME, not_collecting():
        yield
