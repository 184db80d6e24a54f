"""Fields of a config's objects, read by the type they must have.

JSON has no schema, and Python is generous: `int("4")`, `int(4.7)`, `bool("false")`, `True == 1` would
all pass for what somebody meant. A value of another type than the field's is an error that shows it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat

__all__ = ["Fields", "not_decoded", "shown"]

_NOT = "quantization_config can't be understood"


class Fields:
    """An object of `quantization_config`; `where` names it in errors.

    A field that is missing has its default. One that is null counts as missing where the default is
    None. Everything raises CheckpointError.
    """

    def __init__(self, value: Any, where: str):
        self.where = where
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{_NOT}: {where} {shown(value)} is not an object")
        self._value = value

    def wrong(self, name: str, expected: str) -> CheckpointError:
        value = shown(self._value.get(name))
        return CheckpointError(f"{_NOT}: {self.where}: {name} {value} is not {expected}")

    def any(self, name: str, default: Any = None) -> Any:
        """The value as it is."""
        return self._value.get(name, default)

    def __iter__(self) -> Iterator[str]:
        """Names of the fields that are there."""
        return iter(self._value)

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._typed(name, str, "a string", default)

    def whole(self, name: str, default: int | None = None) -> int | None:
        return self._typed(name, int, "an integer", default)

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        return self._typed(name, bool, "true or false", default)

    def names(self, name: str) -> tuple[str, ...]:
        """A list of strings; () where it is missing."""
        value = self._typed(name, list, "a list of names", None) or ()
        if not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of names")
        return tuple(value)

    def object(self, name: str) -> "Fields | None":
        value = self._value.get(name)
        return None if value is None else Fields(value, f"{self.where}, {name}")

    def _typed(self, name: str, kind: type, expected: str, default: Any) -> Any:
        value = self._value.get(name, default)
        if value is None and default is None:
            return None
        # True is an int to Python.
        if type(value) is not kind:
            raise self.wrong(name, expected)
        return value


def not_decoded(method: str, name: str, value: Any) -> UnsupportedFormat:
    """The error for a field of a method's config that has a meaning, and none here."""
    return UnsupportedFormat(f"{method} with {name} {shown(value)}: not decoded")


def shown(value: Any) -> str:
    """A value of JSON as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}…"
