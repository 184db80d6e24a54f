"""Every error that scoremode raises on purpose, and the exit code that it ends a command with.

Each message is one line that names the thing and its value. What a file holds may end up in one, so
characters that can't be printed are escaped, and the middle of a very long one is left out.

Errors that others raise become one line, too: `words_of` is the reason that an error of ours gives,
`line_of` the last line of a command that ends with an error which nobody expected.
"""

import os
from collections.abc import Mapping

__all__ = [
    "CheckpointError",
    "CorpusError",
    "EngineError",
    "GateNotMet",
    "InvalidMeasurement",
    "ProtocolError",
    "ReferenceUnusable",
    "RunFolderError",
    "ScoremodeError",
    "TokenizerError",
    "UnsupportedFormat",
    "UnsupportedModel",
    "UsageError",
    "escaped",
    "is_debugging",
    "line_of",
    "words_of",
]


_LONGEST = 1000


class ScoremodeError(Exception):
    """Base of all: something that was asked for can't be done.

    - `exit_code`: the command line's.
    - `instead`: flags and values with which the same command would do, where that is known.
    - `see`: the command line whose help says more, where there is one.
    """

    exit_code = 1
    instead: Mapping[str, str] = {}
    see = ""

    def __init__(self, message: str = ""):
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
        super().__init__(escaped(message))


class UsageError(ScoremodeError):
    """A command line, or a call's arguments, that contradict themselves."""

    exit_code = 2


class CorpusError(ScoremodeError):
    """A text or data set that is missing, unreadable or not what it claims."""


class TokenizerError(ScoremodeError):
    """A tokenizer that is missing or doesn't fit the model."""


class ProtocolError(ScoremodeError):
    """A protocol that is unknown, or impossible on this text or model."""

    exit_code = 2


class CheckpointError(ScoremodeError):
    """A model's files that are missing, damaged or contradictory."""


class UnsupportedFormat(CheckpointError):
    """A quantization format that is recognised and not decoded."""


class UnsupportedModel(ScoremodeError):
    """An architecture that can't be scored exactly."""


class EngineError(ScoremodeError):
    """An engine, or its device, that can't do what was asked."""


class ReferenceUnusable(ScoremodeError):
    """A reference that is damaged, or of another plan or vocabulary."""


class RunFolderError(ScoremodeError):
    """A run's folder that can't be written, read or resumed."""


class InvalidMeasurement(ScoremodeError):
    """Scores that contradict the plan or themselves: never averaged."""

    exit_code = 3


class GateNotMet(ScoremodeError):
    """A metric beyond the limit that the user set for it, or without the bound that was asked for."""

    exit_code = 4


def escaped(text: str) -> str:
    """A text in one line, without characters that do something to a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def words_of(error: BaseException, most: int = 300, *, named: bool = True) -> str:
    """The message of a library's error in one line of at most `most` characters.

    `named`: behind the error's type, as in `KeyError: 'swish2'`; if not, the system's errors are their
    reason alone, without the path, which is said already. An error without a message is its type alone.
    """
    reason = error.strerror if isinstance(error, OSError) and not named else None
    words, name = " ".join((reason or str(error)).split())[:most], type(error).__name__
    return (f"{name}: {words}" if named else words) if words else name


def line_of(error: BaseException) -> str:
    """One line for any error: a ScoremodeError's message; of another its words and where it was raised,
    as in `KeyError: 'x' (line 12 of cache.py)`."""
    if isinstance(error, ScoremodeError):
        return str(error)
    import traceback  # takes a while, and is seldom needed

    line, found = words_of(error), traceback.extract_tb(error.__traceback__)
    if found:
        line += f" (line {found[-1].lineno} of {os.path.basename(found[-1].filename)})"  # noqa: PTH119
    return str(ScoremodeError(line))


def is_debugging() -> bool:
    """Tells whether tracebacks are to be shown beside the lines: SCOREMODE_DEBUG=1."""
    return os.environ.get("SCOREMODE_DEBUG", "") not in ("", "0")
