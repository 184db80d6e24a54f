"""Parser of command lines: what can't be is one line, and a number is bounded whatever its flag."""

import argparse
import datetime
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from scoremode.errors import UsageError

__all__ = [
    "Once",
    "Parser",
    "bytes_of",
    "check_least",
    "date_of",
    "flag_of",
    "names_file",
    "object_of",
    "probability_of",
    "tokens_of",
]

# Nothing that is counted here (tokens, windows, rows, devices) comes near it, and anything beyond it
# would overflow somewhere in a library.
_LARGEST = 2**31 - 1


class Parser(argparse.ArgumentParser):
    """argparse's, with numbers that are bounded; what can't be parsed raises UsageError.

    Parsers of commands are of the same class.
    """

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.register("type", int, _whole)
        self.register("type", float, _finite)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  typeshed: three overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """argparse's; words between flags that are none are models, of a command that takes several."""
        found, rest = super().parse_known_args(args, namespace)
        several = self.get_default("further_models") is not None
        if several and not any(word.startswith("-") for word in rest):
            found.further_models, rest = tuple(rest), []
        # Here, since the program's own parser would point to its own help.
        if rest and self._subparsers is None:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ('{self.prog} --help' tells the flags)")


class Once(argparse.Action):
    """Stores a value, and refuses a second one: of two texts one would be dropped without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "is given twice")
        setattr(namespace, self.dest, values)


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if abs(number) > _LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is out of range: at most {_LARGEST:,}")
    return number


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def flag_of(name: str) -> str:
    """The flag of an attribute of the namespace: `max_kld` → `--max-kld`."""
    return f"--{name.replace('_', '-')}"


def names_file(name: str) -> bool:
    """Tells whether `name` is a file's, here or not, rather than a data set's on the hub."""
    if os.path.exists(name):  # noqa: PTH110  Path.exists raises for a name too long
        return True
    # OpenHermes-2.5 ends with no suffix but with a version.
    suffix = Path(name).suffix
    return name.startswith((".", "/", "~")) or bool(suffix and not suffix[1:2].isdigit())


def check_least(least: int, args: argparse.Namespace, *names: str) -> None:
    """Raises UsageError where one of these flags is given and below `least`."""
    for name in names:
        if (value := getattr(args, name)) is not None and value < least:
            raise UsageError(f"{flag_of(name)} {value}: must be at least {least}")


def probability_of(text: str) -> float:
    """`0.9`, `90%` → a probability below 1, for argparse."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a probability below 1, such as 0.9")
    return value


def tokens_of(text: str) -> int:
    """`2048`, `32k`, `8K` (1,024 each) → tokens, for argparse."""
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})([kK]?)\s*", text, re.ASCII)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens such as 2048 or 32k")
    tokens = int(match[1]) * (1024 if match[2] else 1)
    if tokens >= 2**31:
        raise argparse.ArgumentTypeError(f"{text}: is more tokens than any text here has")
    return tokens


def bytes_of(text: str) -> int:
    """`8GiB`, `500MB`, `1e9` → bytes, for argparse."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(?:([kmgt])(i?)b?)?\s*", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8GiB or 500MB")
    number, prefix, binary = match.groups()
    power = " kmgt".index(prefix) if prefix else 0
    try:
        size = int(float(number) * (1024 if binary else 1000) ** power)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8GiB") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no memory at all")
    return size


def date_of(text: str) -> datetime.date:
    """`2025-01-31` → that day, for argparse."""
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2025-01-31") from None


def object_of(text: str) -> dict[str, Any]:
    """An object in JSON, for argparse."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not an object in JSON, such as {{"a": 1}}')
    return value
