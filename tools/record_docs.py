"""Writes docs/record.schema.json, and the table in docs/record.md, out of the record's types.

    python tools/record_docs.py

A test holds both files against what this makes of `results.record.definition`.
"""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec

from scoremode.lib.json import json_text
from scoremode.results.record.definition import (
    SCHEMA,
    SCHEMA_VERSION,
    SECTIONS,
    STATUSES,
    AnyStatus,
    needed_by,
)

DOCS = Path(__file__).parent.parent / "docs"
_STATUS = (
    "`running`, `done`, `shard` (a [shard](devices.md#what-a-shard-is) that is done: no whole "
    "run, and without metrics), or `invalid` with a `reason`"
)
_TABLE = re.compile(r"\| section \| needed in \|.*?\n\n", re.DOTALL)


def record_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a whole record, of every status."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA}, version {SCHEMA_VERSION}",
        "description": "What scoremode measured, how, with what result. A record that fits may still "
        "be refused: its sha256 must be its contents', and its numbers those of scores.parquet.",
        **_with_shared_sections(msgspec.json.schema(AnyStatus)),
    }


def _with_shared_sections(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with each section described once, under `$defs`, and named where a status has it."""
    shared = schema["$defs"]
    for kind in get_args(AnyStatus):
        properties = shared[kind.__name__]["properties"]
        for name in SECTIONS:
            section = shared.setdefault(name, properties[name])
            assert section == properties[name], f"{name} of {kind.__name__} differs"
            properties[name] = {"$ref": f"#/$defs/{name}"}
    return schema


def record_table() -> str:
    """The table of a record's sections in Markdown, with an empty line behind it."""
    rows = [
        "| section | needed in | what it says |",
        "|---|---|---|",
        f"| `status` | all | {_STATUS} |",
    ]
    for name, kind in SECTIONS.items():
        needed = needed_by(name)
        where = "all" if needed == STATUSES else ", ".join(needed)
        rows.append(f"| `{name}` | {where} | {_meaning(kind)} |")
    return "\n".join(rows) + "\n\n"


def with_table(page: str) -> str:
    """docs/record.md with the table as it is to be."""
    found = _TABLE.findall(page)
    assert len(found) == 1, "docs/record.md: has no one table of sections"
    return page.replace(found[0], record_table())


def _meaning(kind: Any) -> str:
    """The description in a type, at whatever depth of unions it stands."""
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    return next((words for inner in get_args(kind) if (words := _meaning(inner))), "")


if __name__ == "__main__":
    (DOCS / "record.schema.json").write_text(json_text(record_schema()), encoding="utf-8")
    page = DOCS / "record.md"
    page.write_text(with_table(page.read_text("utf-8")), encoding="utf-8")
