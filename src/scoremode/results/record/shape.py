"""Checking what JSON holds against a shape, with the field named that has another.

A shape is a type (`object` is any) or several; `[shape]`, a list of it; `Each(shape)`, an object whose
every value has it; `Maybe(shape)`, it or null; or a dict: an object with those keys, of which the ones
that end in `?` may be missing. Other keys are free.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COUNT", "FRACTION", "NUMBER", "SHA256", "Each", "Maybe", "Range", "misfit"]


@dataclass(frozen=True)
class Each:
    """An object whose every value has the shape."""

    shape: Any


@dataclass(frozen=True)
class Maybe:
    """The shape, or null."""

    shape: Any


@dataclass(frozen=True)
class Range:
    """A number of that type, at least `low` and at most `high`."""

    type: type
    low: float
    high: float = math.inf


@dataclass(frozen=True)
class Hexadecimal:
    """So many hexadecimal digits."""

    digits: int


COUNT = Range(int, 0)
FRACTION = Range(float, 0)
NUMBER = (int, float)
SHA256 = Hexadecimal(64)
_MOST = 2**63
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false",
          dict: "an object", list: "a list", NUMBER: "a number"}  # fmt: skip


def misfit(value: Any, shape: Any, field: str = "") -> str | None:
    """What of `value` has another shape, as words to be put behind a file's name; None for nothing.

    `field`: where `value` stands, keys and places joined by dots.
    """
    if shape is object:
        return None
    if isinstance(shape, Maybe):
        return None if value is None else misfit(value, shape.shape, field)
    if isinstance(shape, Each):
        if not isinstance(value, Mapping):
            return _is_not(value, "an object", field)
        return _first((misfit(v, shape.shape, _under(field, k)) for k, v in value.items()))
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _is_not(value, "a list", field)
        return _first(misfit(v, shape[0], _under(field, i)) for i, v in enumerate(value))
    if isinstance(shape, Mapping):
        return _object(value, shape, field)
    if isinstance(shape, Hexadecimal):
        fits = isinstance(value, str) and len(value) == shape.digits
        fits = fits and all(c in "0123456789abcdef" for c in value)
        return None if fits else _is_not(value, f"{shape.digits} hexadecimal digits", field)
    if isinstance(shape, Range):
        kind = NUMBER if shape.type is float else int
        if misfit(value, kind, field) is None and shape.low <= value <= shape.high:
            return None
        most = "" if math.isinf(shape.high) else f" and at most {shape.high}"
        return _is_not(value, f"{_WORDS[kind]} of at least {shape.low:g}{most}", field)
    # True is an int to Python, and none to JSON; nor does every int of Python's fit a float.
    is_bool = isinstance(value, bool) and shape is not bool
    is_huge = isinstance(value, int) and not -_MOST <= value <= _MOST
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


def _first(found: Any) -> str | None:
    return next((words for words in found if words is not None), None)


def _under(field: str, key: object) -> str:
    return f"{field}.{key}" if field else str(key)


def _is_not(value: Any, wanted: str, field: str) -> str:
    text = repr(value)
    short = text if len(text) <= 60 else f"{text[:60]}…"
    return f"its {field} is {short}, not {wanted}" if field else f"is {short}, not {wanted}"
