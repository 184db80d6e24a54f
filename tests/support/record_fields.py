"""Parts of records with attributes; and records with one field removed, of every other type, or one too
many."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from msgspec import UNSET

# One of every type of JSON; whole numbers in floats are left out, which JSON Schema takes for integers.
OTHERS: tuple[Any, ...] = (None, True, -3, 2**70, -0.5, "other", [], ["other"], {}, {"other": []})


def paths(value: Any, at: tuple = (), *, most: int | None = None) -> list[tuple]:
    """The places of all that a record holds; `most`: of the first so many of a list's members, and of
    groups of numbers by name."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value))
    is_even = isinstance(value, list) or len({type(child) for _, child in inner}) == 1
    found = []
    for key, child in inner[:most] if is_even and at else inner:
        found.append((*at, key))
        if isinstance(child, dict | list):
            found += paths(child, (*at, key), most=most)
    return found


def changed(record: Any, path: tuple, how: str, junk: Any) -> Any:
    """A record with another value at one place; all else is shared with `record`."""
    key, *rest = path
    other = copy.copy(record)
    if rest:
        other[key] = changed(record[key], tuple(rest), how, junk)
    elif how == "drop":
        del other[key]
    elif how == "nudge" and isinstance(other[key], int | float):
        other[key] += 1
    else:
        other[key] = junk
    return other


def mutations(record: dict, *sections: str) -> Iterator[tuple[str, dict]]:
    """Every one of a record's fields removed, of another type, and, in objects, another beside it.

    `sections`: the only ones that are changed, by default all.
    """
    places = [p for p in paths(record, most=1) if not sections or p[0] in sections]
    for path in places:
        name = ".".join(map(str, path))
        yield f"without {name}", changed(record, path, "drop", None)
        for junk in OTHERS:
            yield f"{name} = {junk!r}", changed(record, path, "junk", junk)
    objects = [()] + [p for p in places if isinstance(_at(record, p), dict)]
    for path in objects:
        for junk in ("other", ["other"]):
            yield f"{path} with {junk!r}", changed(record, (*path, "one too many"), "junk", junk)


def _at(record: Any, path: tuple) -> Any:
    for key in path:
        record = record[key]
    return record


class _Fields(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        return UNSET


# Sections whose keys are no fields.
_FREE = ("seconds", "metrics", "formats", "labels", "arguments", "stderr")


def fields(value: Any) -> Any:
    """A part of a record with attributes in place of keys; what it lacks is UNSET."""
    if isinstance(value, list):
        return [fields(each) for each in value]
    if not isinstance(value, dict):
        return value
    return _Fields(**{k: v if k in _FREE else fields(v) for k, v in value.items()})
