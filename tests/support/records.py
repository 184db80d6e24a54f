"""Typed records of made or changed JSON objects."""

import copy
from typing import Any

from scoremode.results.record.definition import Record, read_document


def typed(document: dict[str, Any]) -> Any:
    """The record of a copy of a JSON object."""
    return read_document(copy.deepcopy(document))


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
