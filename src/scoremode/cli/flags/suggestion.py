"""The whole command that would do, where an error knows which flags were in the way."""

import shlex
from collections.abc import Mapping, Sequence

from scoremode.errors import ScoremodeError

__all__ = ["suggestion"]

_SHORT = {"--context-length": "-c"}
_LONGEST = 600


def suggestion(error: ScoremodeError, argv: Sequence[str]) -> str:
    """The end of an error's line: nothing, or the command with the flags it names, to be copied."""
    if not error.instead:
        return ""
    command = shlex.join(["scoremode", *_corrected(argv, error.instead)])
    # A text of pages on the command line is nothing to copy.
    return f"; such as: {command}" if command.isprintable() and len(command) <= _LONGEST else ""


def _corrected(argv: Sequence[str], instead: Mapping[str, str]) -> list[str]:
    names = {**{flag: flag for flag in instead}, **{v: k for k, v in _SHORT.items()}}
    kept, words = [], iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if names.get(flag) in instead:
            if not equals:
                next(words, None)
        else:
            kept.append(word)
    return [*kept, *(word for flag, value in instead.items() for word in (flag, value))]
