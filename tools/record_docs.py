"""Writes docs/record.schema.json, and the table in docs/record.md, out of the record's definition.

    python tools/record_docs.py

A test holds both files against what this makes of `results.record.definition`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.lib.json import json_text
from scoremode.results.record.definition import SCHEMA, SCHEMA_VERSION, SECTIONS, STATUSES
from scoremode.results.record.shape import (
    MOST,
    NUMBER,
    Choice,
    Each,
    Either,
    Hexadecimal,
    Maybe,
    Range,
    Where,
)

DOCS = Path(__file__).parent.parent / "docs"
_TYPES = {str: "string", bool: "boolean", dict: "object", list: "array", NUMBER: "number"}
_TABLE = re.compile(r"\| section \| needed in \|.*?\n\n", re.DOTALL)


def schema_of(shape: Any) -> dict[str, Any]:
    """A shape as JSON Schema, 2020-12."""
    match shape:
        case Maybe():
            return {"anyOf": [schema_of(shape.shape), {"type": "null"}]}
        case Either():
            return {"anyOf": [schema_of(shape.shape), schema_of(shape.other)]}
        case Where():
            return schema_of(shape.shape) | _if({shape.key: shape.value}, schema_of(shape.also))
        case Each():
            needed = {"required": list(shape.needed)} if shape.needed else {}
            return {"type": "object", **needed, "additionalProperties": schema_of(shape.shape)}
        case Mapping():
            return _object(shape)
        case list():
            length = {"minItems": len(shape), "maxItems": len(shape)} if len(shape) > 1 else {}
            return {"type": "array", "items": schema_of(shape[0]), **length}
        case Choice():
            return {"enum": list(shape.values)}
        case Hexadecimal():
            return {"type": "string", "pattern": f"^[0-9a-f]{{{shape.digits}}}$"}
        case Range():
            kind = "number" if shape.type is float else "integer"
            return {"type": kind, "minimum": shape.low, "maximum": min(shape.high, MOST)}
    return {} if shape is object else {"type": _TYPES[shape]}


def record_schema() -> dict[str, Any]:
    """The JSON Schema of a whole record, of every status."""
    described = {name: _described(name) for name in SECTIONS}
    described["schema"] = {"const": SCHEMA} | described["schema"]
    described["schema_version"] = {"const": SCHEMA_VERSION} | described["schema_version"]
    conditions = [
        _if(
            {"status": status},
            {"required": [name for name, s in SECTIONS.items() if status in s.needed]},
        )
        for status in STATUSES
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA}, version {SCHEMA_VERSION}",
        "description": "What scoremode measured, how, with what result. A record that fits may still "
        "be refused: its sha256 must be its contents', and its numbers those of scores.parquet.",
        "type": "object",
        "required": [name for name, s in SECTIONS.items() if s.needed == STATUSES],
        "properties": described,
        "allOf": conditions,
    }


def record_table() -> str:
    """The table of a record's sections in Markdown, with an empty line behind it."""
    rows = ["| section | needed in | what it says |", "|---|---|---|"]
    for name, section in SECTIONS.items():
        needed = "all" if section.needed == STATUSES else ", ".join(section.needed)
        rows.append(f"| `{name}` | {needed} | {section.words} |")
    return "\n".join(rows) + "\n\n"


def with_table(page: str) -> str:
    """docs/record.md with the table as it is to be."""
    found = _TABLE.findall(page)
    assert len(found) == 1, "docs/record.md: has no one table of sections"
    return page.replace(found[0], record_table())


def _described(name: str) -> dict[str, Any]:
    return {"description": SECTIONS[name].words} | schema_of(SECTIONS[name].shape)


def _object(shape: Mapping[str, Any]) -> dict[str, Any]:
    needed = [key for key in shape if not key.endswith("?")]
    return {
        "type": "object",
        **({"required": needed} if needed else {}),
        "properties": {key.removesuffix("?"): schema_of(inner) for key, inner in shape.items()},
    }


def _if(values: Mapping[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """A condition on an object's `values`."""
    chosen = {key: {"const": value} for key, value in values.items()}
    return {"if": {"required": list(values), "properties": chosen}, "then": then}


if __name__ == "__main__":
    (DOCS / "record.schema.json").write_text(json_text(record_schema()), encoding="utf-8")
    page = DOCS / "record.md"
    page.write_text(with_table(page.read_text("utf-8")), encoding="utf-8")
