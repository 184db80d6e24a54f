"""Parser of command lines: what can't be is one line, and a number is bounded whatever its flag."""

import argparse
import math
from typing import Any, NoReturn

from scoremode.errors import UsageError

__all__ = ["Parser"]

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

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ('{self.prog} --help' tells the flags)")


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
