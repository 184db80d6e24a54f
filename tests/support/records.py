"""Typed records of made or changed JSON objects."""

import copy
from typing import Any

from scoremode.results.record.definition import Record, read_document


def with_fields(record: Record | dict[str, Any], fields: dict[str, Any]) -> Any:
    """A copy of a record with other values: `fields` by their keys joined by dots."""
    document = copy.deepcopy(record if isinstance(record, dict) else record.document)
    for path, value in fields.items():
        *parents, last = path.split(".")
        place = document
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
    return read_document(document)
