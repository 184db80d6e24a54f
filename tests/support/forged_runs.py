"""Finished runs as somebody might publish them who measured something else, or nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.results.folders.store import RECORD, SCORES, read_columns, seal_of
from scoremode.results.record.checks import protocol_sha256, windows_sha256
from scoremode.results.record.sections import sections
from scoremode.results.statistics.divergence import worst_tokens


def forged(
    run: Path,
    target: Path,
    record: Callable[[dict[str, Any]], object] = lambda _: None,
    columns: Callable[[dict[str, Any]], object] | None = None,
) -> Path:
    """A copy of a run with other scores, all numbers made of them, or an edited record; resealed.

    - `record`, `columns`: change what they are given, the record last.
    """
    shutil.copytree(run, target)
    value = json.loads((run / RECORD).read_text())
    if columns is not None:
        table = pq.read_table(run / SCORES)
        changed = {name: table.column(name).to_numpy() for name in table.column_names}
        columns(changed)
        pq.write_table(pa.table(changed), target / SCORES)
        _make_again(target, value)
    record(value)
    return sealed(target, value)


def sealed(folder: Path, record: dict[str, Any]) -> Path:
    """Writes a record with the sha256 that it then has."""
    record["sha256"] = seal_of(record)
    (folder / RECORD).write_text(json.dumps(record))
    return folder


def _make_again(folder: Path, record: dict[str, Any]) -> None:
    scores, extras = read_columns(folder / SCORES)
    record |= sections(scores, record["protocol"]["context_length"], extras, record=record)
    record["scores"] |= {"rows": len(scores), "sha256": hash_file(folder / SCORES)}
    record["plan"] |= {"scored": len(scores), "windows": len(set(scores.window.tolist()))}
    record["plan"]["unique"] = len(set(scores.index.tolist()))
    record["protocol"]["sha256"] = protocol_sha256(record["protocol"])
    record["plan"]["sha256"] = windows_sha256(record, scores)
    record["identity"]["plan"] = record["plan"]["sha256"]
    if scores.against is not None:
        texts = record["worst"]
        made = worst_tokens(scores, scores.against)
        record["worst"] = [old | new for old, new in zip(texts, made, strict=True)]


def wrong(result: dict) -> dict[str, str]:
    """Part and name of all that is wrong → the words."""
    return {
        f"{f['part']} {f['name']}": f["words"]
        for run in result["runs"]
        for f in run["findings"]
        if f["status"] == "wrong"
    }


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
