"""Typed records of made or changed JSON objects."""

import copy
from types import SimpleNamespace
from typing import Any, get_type_hints

from msgspec import UNSET

from scoremode.results.record.definition import Done, Record, read_document
from scoremode.results.record.section import decode


def typed(document: dict[str, Any]) -> Any:
    """The record of a copy of a JSON object."""
    return read_document(copy.deepcopy(document))


def of_sections(**sections: Any) -> Any:
    """A record of the sections given, as JSON objects; None is a missing one."""
    kinds = get_type_hints(Done)
    return SimpleNamespace(
        **{
            name: UNSET if value is None else decode(value, kinds[name])
            for name, value in sections.items()
        }
    )


def with_fields(record: Record, fields: dict[str, Any]) -> Any:
    """A copy of a record with other values: `fields` by their keys joined by dots."""
    document = copy.deepcopy(record.document)
    for path, value in fields.items():
        *parents, last = path.split(".")
        place = document
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
    return read_document(document)
