"""Base of a record's sections: typed values, read once, with the field named that doesn't fit.

    class Look(Section):
        windows: Positive
        ci95: tuple[float, float] | None

`misfit` says in words what doesn't fit a type, `decode` makes the value. A field that a section
doesn't declare is free, and stays in the file alone: an engine notes more of itself than anything here
reads. A field that may be missing is UNSET then, which is false; one that may
be null as well is None. msgspec does the checking,
and makes docs/record.schema.json of the same types (`tools/reference_docs.py`).
"""

import math
import re
import types
import typing
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# Whole numbers of a record fit 64 bits, as numpy's and other languages' do.
_MOST = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Fraction = Annotated[float, Meta(ge=0)]
Sha256 = Annotated[str, Meta(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON object of a record with its declared fields as attributes, read only."""


class Metric(Section, frozen=True):
    """A number: `value`, its 95 % interval, and how many evaluations it averages.

    `ci95` is None where no interval can be given, and `note` says why.
    """

    value: float
    ci95: tuple[float, float] | None
    n: Count
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        ends = None if self.ci95 is None else list(self.ci95)
        return {"value": self.value, "ci95": ends, "n": self.n, "note": self.note}


def words(text: str) -> Meta:
    """The meaning of a field, in Markdown: its description in the schema and in docs/record.md."""
    return Meta(description=text)


def decode(value: Any, kind: Any) -> Any:
    """`value`, as a JSON parser gives it, as a `kind`: a section, or a union of some. Raises ValueError
    with the words of `misfit`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ValueError(misfit(value, kind)) from None


def misfit(value: Any, kind: Any, field: str = "") -> str | None:
    """The first thing in `value` that isn't of `kind`, as words to be put behind a file's name; None
    where all is.

    - `kind`: a `Section`, or any type that msgspec knows.
    - `field`: where `value` stands, keys and places joined by dots.
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said = str(error)
    else:
        return None
    # msgspec doesn't name keys of dicts, so the field is looked for from above.
    for key, inner, its_kind in _inside(value, kind):
        if problem := misfit(inner, its_kind, f"{field}.{key}" if field else str(key)):
            return problem
    if said.startswith("has no "):
        missing = said.removeprefix("has no ").split(" - at ")[0]
        return f"has no {field}.{missing}" if field else f"has no {missing}"
    if missing := re.match(r"Object missing required field `(.*?)`", said):
        return f"has no {field}.{missing[1]}" if field else f"has no {missing[1]}"
    found, wanted = shortened(repr(value)), _wanted(said, kind)
    return f"its {field} is {found}, not {wanted}" if field else f"is {found}, not {wanted}"


def _inside(value: Any, kind: Any) -> Iterable[tuple[Any, Any, Any]]:
    """Key, value and type of each thing that `value` holds, as far as `kind` says a type."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [k for k in arguments if k not in (types.NoneType, msgspec.UnsetType)]
        if len(kinds) > 1 and isinstance(value, Mapping):
            # Sections that a field of theirs tells apart.
            tags = {k.__struct_config__.tag: k for k in kinds}
            tag_field = kinds[0].__struct_config__.tag_field
            tag = value.get(tag_field)
            kinds = [tags[tag]] if isinstance(tag, str) and tag in tags else []
            if not kinds:
                yield tag_field, tag, Literal[tuple(tags)]
        for each in kinds:
            yield from _inside(value, each)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, Mapping):
        hints = typing.get_type_hints(kind, include_extras=True)
        for f in msgspec.structs.fields(kind):
            if f.encode_name in value:
                yield f.encode_name, value[f.encode_name], hints[f.name]
    elif typing.is_typeddict(kind) and isinstance(value, Mapping):
        hints = typing.get_type_hints(kind)
        yield from ((key, inner, hints[key]) for key, inner in value.items() if key in hints)
    elif origin is dict and isinstance(value, Mapping):
        yield from ((key, inner, arguments[1]) for key, inner in value.items())
    elif origin is list and isinstance(value, list):
        yield from ((i, inner, arguments[0]) for i, inner in enumerate(value))
    elif origin is tuple and isinstance(value, list) and len(value) == len(arguments):
        yield from ((i, *pair) for i, pair in enumerate(zip(value, arguments, strict=True)))


_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}


def _wanted(said: str, kind: Any) -> str:
    """What msgspec's message asks for, in words."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if "regex" in said or "length >= 64" in said or "length <= 64" in said:
        return "64 hexadecimal digits"
    if length := re.match(r"Expected `array` of length (\d+)", said):
        return f"a list of {length[1]}"
    if bound := re.match(r"Expected `(int|float)` ([<>]=) (\S+)", said):
        end = "least" if bound[2] == ">=" else "most"
        return f"{_WORDS[bound[1]]} of at {end} {bound[3].removesuffix('.0')}"
    if said.startswith("Number out of range"):
        return _WORDS["float"]
    if expected := re.match(r"Expected `(\w+)(?: \| null)?`", said):
        return _WORDS.get(expected[1], expected[1])
    return said


def shortened(text: str) -> str:
    """The text for a message: its first 60 characters."""
    return text if len(text) <= 60 else f"{text[:60]}…"


def value_at(value: Any, field: str, missing: Any = None) -> Any:
    """The value under `field`, keys joined by dots, in objects inside one another, or `missing`."""
    for key in field.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return missing
        value = value[key]
    return value


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
