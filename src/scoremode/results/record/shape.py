"""Checking what JSON holds against a shape, with the field named that has another.

A shape is a type (`object` is any) or several; `[shape]`, a list of it, and `[shape, shape]` one of so
many; a dict: an object with those keys, of which the ones that end in `?` may be missing, and any
others; or one of the classes below. `tools/record_docs.py` writes a shape as JSON Schema.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "COUNT",
    "FRACTION",
    "MOST",
    "NUMBER",
    "SHA256",
    "Choice",
    "Each",
    "Either",
    "Hexadecimal",
    "Maybe",
    "Range",
    "Where",
    "misfit",
    "shortened",
    "value_at",
]


@dataclass(frozen=True)
class Each:
    """An object whose every value has the shape, with all `needed` keys among its own."""

    shape: Any
    needed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Maybe:
    """The shape, or null."""

    shape: Any


@dataclass(frozen=True)
class Either:
    """A choice of two shapes; what fits neither is told by the first."""

    shape: Any
    other: Any


@dataclass(frozen=True)
class Where:
    """The shape of an object; one whose `key` has that `value` has the shape `also` as well."""

    shape: Any
    key: str
    value: str
    also: Any


@dataclass(frozen=True)
class Range:
    """A number of that type, at least `low` and at most `high`."""

    type: type
    low: float
    high: float = math.inf


@dataclass(frozen=True)
class Hexadecimal:
    """A text of so many hexadecimal digits."""

    digits: int


class Choice:
    """A choice of some texts."""

    def __init__(self, *values: str):
        self.values = values


COUNT = Range(int, 0)
FRACTION = Range(float, 0)
NUMBER = (int, float)
SHA256 = Hexadecimal(64)
# The largest whole number that is one: not every int of Python's fits a float.
MOST = 2**63
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false",
          dict: "an object", list: "a list", NUMBER: "a number"}  # fmt: skip


def misfit(value: Any, shape: Any, field: str = "") -> str | None:
    """The first thing in `value` that has another shape, as words to be put behind a file's name; None
    for nothing.

    `field`: where `value` stands, keys and places joined by dots.
    """
    match shape:
        case Maybe():
            return None if value is None else misfit(value, shape.shape, field)
        case Either():
            found = misfit(value, shape.shape, field)
            return None if found is None or misfit(value, shape.other, field) is None else found
        case Where():
            if found := misfit(value, shape.shape, field):
                return found
            return misfit(value, shape.also, field) if value.get(shape.key) == shape.value else None
        case Each():
            needed = dict.fromkeys(shape.needed, object)
            if found := _object(value, needed, field):
                return found
            return _first(misfit(v, shape.shape, _under(field, k)) for k, v in value.items())
        case Mapping():
            return _object(value, shape, field)
        case list():
            if not isinstance(value, list):
                return _is_not(value, "a list", field)
            if len(shape) > 1 and len(value) != len(shape):
                return _is_not(value, f"a list of {len(shape)}", field)
            return _first(misfit(v, shape[0], _under(field, i)) for i, v in enumerate(value))
        case Choice():
            is_one = isinstance(value, str) and value in shape.values
            return None if is_one else _is_not(value, f"one of {', '.join(shape.values)}", field)
        case Hexadecimal():
            fits = isinstance(value, str) and len(value) == shape.digits
            fits = fits and all(c in "0123456789abcdef" for c in value)
            return None if fits else _is_not(value, f"{shape.digits} hexadecimal digits", field)
        case Range():
            kind = NUMBER if shape.type is float else int
            if misfit(value, kind, field) is None and shape.low <= value <= shape.high:
                return None
            most = "" if math.isinf(shape.high) else f" and at most {shape.high}"
            return _is_not(value, f"{_WORDS[kind]} of at least {shape.low:g}{most}", field)
    if shape is object:
        return None
    # True is an int to Python, and none to JSON.
    is_bool = isinstance(value, bool) and shape is not bool
    is_huge = isinstance(value, int) and not -MOST <= value <= MOST
    if is_bool or is_huge or not isinstance(value, shape):
        return _is_not(value, _WORDS[shape], field)
    return None


def _object(value: Any, shape: Mapping[str, Any], field: str) -> str | None:
    if not isinstance(value, Mapping):
        return _is_not(value, "an object", field)
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            if found := misfit(value[name], inner, _under(field, name)):
                return found
        elif name == key:
            return f"has no {_under(field, name)}"
    return None


def _first(found: Iterable[str | None]) -> str | None:
    return next((words for words in found if words is not None), None)


def _under(field: str, key: object) -> str:
    return f"{field}.{key}" if field else str(key)


def _is_not(value: Any, wanted: str, field: str) -> str:
    short = shortened(repr(value))
    return f"its {field} is {short}, not {wanted}" if field else f"is {short}, not {wanted}"


def shortened(text: str) -> str:
    """The text for a message: its first 60 characters."""
    return text if len(text) <= 60 else f"{text[:60]}…"


def value_at(value: Any, field: str, missing: Any = None) -> Any:
    """What stands in `value` under `field`, keys joined by dots, or `missing`."""
    for key in field.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return missing
        value = value[key]
    return value
