"""What is said of an error that nobody expected: one line, or all of it for who asks for that."""

import os

from scoremode.errors import ScoremodeError

__all__ = ["is_debugging", "line_of"]


def line_of(error: BaseException) -> str:
    """What went wrong, and where, in one line."""
    import traceback  # takes a while, and is seldom needed

    text = " ".join(str(error).split())[:300]
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    found = traceback.extract_tb(error.__traceback__)
    if found:
        named += f" (line {found[-1].lineno} of {os.path.basename(found[-1].filename)})"  # noqa: PTH119
    return str(ScoremodeError(named))


def is_debugging() -> bool:
    """Whether tracebacks are to be shown beside the lines: SCOREMODE_DEBUG=1."""
    return os.environ.get("SCOREMODE_DEBUG", "") not in ("", "0")
