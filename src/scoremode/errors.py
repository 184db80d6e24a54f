"""Every error that scoremode raises on purpose, and the exit code it ends a command with.

    ScoremodeError                1   something that was asked for can't be done
    ├── UsageError                2   the command line or the arguments contradict themselves
    ├── CorpusError               1   a text or data set is missing, unreadable or not what it claims
    ├── TokenizerError            1   a tokenizer is missing or doesn't fit the model
    ├── ProtocolError             2   a protocol is unknown, or impossible on this text or model
    ├── CheckpointError           1   a model's files are missing, damaged or contradictory
    │   └── UnsupportedFormat     1   a quantization format that is recognised and not decoded
    ├── UnsupportedModel          1   an architecture that can't be scored exactly
    ├── EngineError               1   the engine or its device can't do what was asked
    ├── ReferenceUnusable         1   a reference is damaged, or of another plan or vocabulary
    ├── RunFolderError            1   a run's folder can't be written, read or resumed
    ├── InvalidMeasurement        3   scores came back, and they can't be true
    └── GateNotMet                4   the measurement is sound, and beyond a limit that was set

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
    "is_debugging",
    "line_of",
    "words_of",
]


_LONGEST = 1000


class ScoremodeError(Exception):
    """Base of all; `exit_code` is what the command line ends with.

    `instead`: flags and values with which the same command would do, where that is known.
    """

    exit_code = 1
    instead: Mapping[str, str] = {}

    def __init__(self, message: str = ""):
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
        if not message.isprintable():
            message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        super().__init__(message)


class UsageError(ScoremodeError):
    exit_code = 2


class CorpusError(ScoremodeError):
    pass


class TokenizerError(ScoremodeError):
    pass


class ProtocolError(ScoremodeError):
    exit_code = 2


class CheckpointError(ScoremodeError):
    pass


class UnsupportedFormat(CheckpointError):
    pass


class UnsupportedModel(ScoremodeError):
    pass


class EngineError(ScoremodeError):
    pass


class ReferenceUnusable(ScoremodeError):
    pass


class RunFolderError(ScoremodeError):
    pass


class InvalidMeasurement(ScoremodeError):
    """Scores that contradict the plan or themselves: never averaged."""

    exit_code = 3


class GateNotMet(ScoremodeError):
    """A metric beyond the limit that the user set for it, or without the bound that was asked for."""

    exit_code = 4


def words_of(error: BaseException, most: int = 300, *, named: bool = True) -> str:
    """The message of a library's error in one line of at most `most` characters.

    `named`: behind the error's type, as in `KeyError: 'swish2'`. An error without a message is its type
    alone.
    """
    words, name = " ".join(str(error).split())[:most], type(error).__name__
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
