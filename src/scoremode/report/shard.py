"""A finished shard as text: what it has scored, and no number of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.forms.document import Document, Facts, Table, data
from scoremode.report.layout import counted
from scoremode.report.table import caveats, protocol_words, ran_rows, text_words

__all__ = ["shard_document"]


def shard_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The shard in `folder`; `verbose`: with where it ran, and how long."""
    shard = record["shard"]
    (first, behind), (begin, end) = shard["passes"], shard["windows"]
    number, of = shard["number"], shard["of"]
    whole = "it is all of the run" if of == 1 else "a part of the text"
    rows = [
        ("shard", f"{number} of {of}, done"),
        ("no metrics", f"{whole}: scoremode merge makes the run of {counted(of, 'shard')}"),
        ("model", record["checkpoint"]["source"]),
        *_base(record),
        ("passes", f"{first + 1} to {behind} of {shard['of_passes']:,}"),
        ("windows", f"{begin + 1:,} to {end:,} of {record['plan']['windows']:,}"),
        ("targets", f"{shard['targets']:,} of {record['plan']['scored']:,}"),
        ("text", text_words(record["corpus"])),
        ("protocol", protocol_words(record["protocol"])),
        *caveats(record),
        *(ran_rows(record) if verbose else ()),
        ("record", str(folder / "record.json")),
    ]
    plain = {
        "folder": str(folder),
        "model": record["checkpoint"]["source"],
        "reference": (record.get("reference") or {}).get("source"),
        "shard": number,
        "of": of,
        "first_pass": first,
        "passes": behind - first,
        "of_passes": shard["of_passes"],
        "first_window": begin,
        "windows": end - begin,
        "targets": shard["targets"],
    }
    table = Table(tuple(map(data, plain)), (tuple(plain.values()),))
    return Document((Facts(tuple(rows), frozenset(("shard", "model"))),), table)


def _base(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = record.get("reference")
    return [] if found is None else [("base", str(found["source"]))]
