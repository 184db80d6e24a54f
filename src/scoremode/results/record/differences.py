"""Tells where two values of a record differ, leaf by leaf: what it says, and what was made anew."""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.results.record.section import misfit, shortened

# Sums in another order, on another machine, come this close.
_RELATIVE, _ABSOLUTE = 1e-7, 1e-12


@dataclass(frozen=True)
class Difference:
    """A field, keys joined by dots, whose value is not the one that was made anew.

    `words`: what is wrong with it, to be put behind "its record: ".
    """

    field: str
    words: str


def differences(
    field: str, stored: Any, made: Any, skipped: Container[str] = (), of: str = "its scores"
) -> Iterator[Difference]:
    """Everything that `stored` says and that `made` doesn't; what `stored` leaves out is nothing wrong.

    - `skipped`: keys, at any depth, that are not compared.
    - `of`: what `made` is made of, in the plural.
    """
    if isinstance(made, Mapping) and isinstance(stored, Mapping):
        for key, value in stored.items():
            inside = f"{field}.{key}"
            if key not in made:
                yield Difference(inside, f"has {inside}, which {of} don't give")
            elif key not in skipped:
                yield from differences(inside, value, made[key], skipped, of)
    elif isinstance(made, list | tuple) and isinstance(stored, list) and len(made) == len(stored):
        for i, (one, other) in enumerate(zip(stored, made, strict=True)):
            yield from differences(f"{field}.{i}", one, other, skipped, of)
    elif not _is_same(stored, made):
        said, found = shortened(str(stored)), shortened(str(made))
        yield Difference(field, f"its {field} is {said}, and {of} give {found}")


def first_difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any] | None:
    """The innermost field of `name` that differs, and both values; None where nothing does."""
    if theirs == ours:
        return None
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            inside = f"{name} {key}".strip()
            if found := first_difference(inside, theirs.get(key), ours.get(key)):
                return found
    return name or "identity", theirs, ours


def _is_same(stored: Any, made: Any) -> bool:
    if isinstance(made, float) and misfit(stored, float) is None:
        return math.isclose(stored, made, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return type(stored) is type(made) and stored == made
