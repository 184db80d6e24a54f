"""An attribution read back: its numbers on disk, and what they say, made of them again.

`attribution-BY.parquet` has `index` (int64, the target's place in the token stream), `kld` of the
whole model, and for each unit `alone NAME` and `without NAME`, all float64 [N] in nats, in the order
of the run's scores, and `tv NAME`, the total variation of the base and the base with that unit of the
model; and their `weight`, where an evaluation may count otherwise than once. Everything
that `attribution-BY.json` says in nats is made of them.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import RunFolderError
from scoremode.lib.files import atomic
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import read_json, seal_of
from scoremode.results.folders.tables import read_parquet
from scoremode.results.record.definition import Done
from scoremode.results.record.section import differences
from scoremode.results.scores import Scores
from scoremode.results.statistics.means import Blocks, Mean, estimates

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray]


def file_of(folder: Path, by: str, kind: str) -> Path:
    """The file of a run's attribution by layer, module or kind: `json` or `parquet`."""
    return folder / f"attribution-{by}.{kind}"


def column_of(direction: str, unit: str) -> str:
    """The name of the column of one unit's variant, `alone` or `without`, or its `tv`."""
    return f"{direction} {unit}"


def write_columns(path: Path, columns: Columns) -> str:
    """Writes the columns, whole or not at all; returns the file's sha256. Raises RunFolderError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), buffer, compression="zstd")
    data = memoryview(buffer.getvalue())
    with atomic(path) as tmp:
        tmp.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read_attributed(path: Path, sha256: str, rows: int, units: int) -> Columns:
    """The columns as they were written, of a run with so many `rows` and parts. Raises RunFolderError
    for a file of more rows, or with another sha256."""
    # Half as much again as its numbers take unpacked.
    return read_parquet(path, sha256, rows, row_bytes=12 * (3 * units + 3))


def metrics_of(
    columns: Columns, units: Sequence[str], block_length: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What an attribution says in nats, by the columns alone: `whole` and the sums, and each unit's.

    - `block_length`: tokens of a bootstrap block, the run's.

    All intervals are paired: they come of the same resamples of blocks of the text. `without` and
    `fall` are there where the columns are.
    """
    blocks = Blocks(columns["index"], block_length, columns.get("weight"))
    whole = columns["kld"]
    values: dict[tuple[str, str], Floats] = {("", "kld"): whole}
    of_units = ["alone"]
    for unit in units:
        values[unit, "alone"] = columns[column_of("alone", unit)]
        values[unit, "acceptance"] = 1 - columns[column_of("tv", unit)]
        if (without := columns.get(column_of("without", unit))) is not None:
            values[unit, "without"], values[unit, "fall"] = without, whole - without
            of_units = ["alone", "without", "fall"]
    for name in of_units:
        if name != "without":
            values["", name] = np.sum([values[unit, name] for unit in units], axis=0)
    means: dict[tuple[str, str], Mean] = {}
    for key, column in values.items():
        mean = blocks.mean(column)
        assert mean is not None
        means[key] = mean
    found = estimates(means, block_length)
    total = found["", "kld"].value

    def said(unit: str, name: str) -> dict[str, Any]:
        metric = found[unit, name]
        is_share = name == "fall" or not unit
        share = metric.value / total if total else None
        return metric.to_json() | ({"share": share} if is_share else {})

    sums = {name: said("", name) for name in of_units if name != "without"}
    summary = {"kld": found["", "kld"].to_json(), "additivity": sums}
    of_units.append("acceptance")
    return summary, [{name: said(unit, name) for name in of_units} for unit in units]


SCHEMA, SCHEMA_VERSION = "scoremode/attribution", 1


def read_attribution(path: Path) -> dict[str, Any]:
    """The attribution in a file. Raises RunFolderError for what is none, or is not as it was
    written."""
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise RunFolderError(f"{path}: is no attribution of scoremode's")
    if value.get("schema_version") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path}: has schema version {value.get('schema_version')}, and {SCHEMA_VERSION} is read"
        )
    if value.get("sha256") != seal_of(value):
        raise RunFolderError(f"{path}: was changed after it was written: its sha256 is another")
    if wrong := _missing(value, path):
        raise RunFolderError(f"{path}: {wrong} is not what an attribution has there")
    return value


def _missing(value: Mapping[str, Any], path: Path) -> str | None:
    """The first field that what reads an attribution relies on, and that is not of its kind."""
    columns, units = value.get("columns"), value.get("units")
    # Its own file beside it, whatever a path in it would lead to.
    if not isinstance(columns, dict) or columns.get("name") != f"{path.stem}.parquet":
        return "columns.name"
    if not isinstance(columns.get("sha256"), str):
        return "columns.sha256"
    if type(value.get("block_tokens")) is not int or value["block_tokens"] < 1:
        return "block_tokens"
    for name in ("kld", "additivity"):
        if not isinstance(value.get(name), dict):
            return name
    if not isinstance(units, list) or not units:
        return "units"
    for number, unit in enumerate(units):
        is_named = isinstance(unit, dict) and isinstance(unit.get("name"), str)
        if not is_named or not isinstance(unit.get("alone"), dict):
            return f"units[{number}]"
        sizes = [unit.get(name) for name in ("bytes", "base_bytes", "parameters")]
        if any(type(size) is not int or size < 0 for size in sizes):
            return f"units[{number}].bytes"
    if len({unit["name"] for unit in units}) < len(units):
        return "units"
    return None


def audit_attributions(
    folder: Path,
    record: Done,
    read: tuple[Scores, Mapping[str, NDArray]] | None,
    findings: Findings,
) -> None:
    """Makes every attribution in a run's folder again, in nats, and holds it against its file.

    `read`: the run's scores and further columns, None where they can't be read.
    """
    for path in sorted(folder.glob("attribution-*.json")):
        part = path.stem
        try:
            value = read_attribution(path)
            rows = record.plan.scored if read is None else len(read[0])
            file, units = value["columns"], len(value["units"])
            columns = read_attributed(folder / file["name"], file["sha256"], rows, units)
        except RunFolderError as error:
            findings.wrong(part, "files", str(error))
            continue
        findings.same(part, "run", value.get("run"), record.sha256, "the record is")
        findings.same(part, "by", f"attribution-{value.get('by')}", part, "the file is")
        blocks = record.intervals.block_length if record.intervals else None
        findings.same(part, "block_tokens", value["block_tokens"], blocks, "the run's are")
        names = [unit["name"] for unit in value["units"]]
        directions = [d for d in ("alone", "without") if d in value["units"][0]]
        wanted = {"index", "kld"} | {column_of(d, n) for n in names for d in (*directions, "tv")}
        if missing := sorted(wanted - columns.keys()):
            findings.wrong(part, "columns", f"there is no column {missing[0]}")
            continue
        rows = len(columns["index"])
        findings.same(part, "rows", value["columns"].get("rows"), rows, "its columns have")
        if read is not None:
            _hold_scores(part, columns, *read, findings)
        if not rows:
            continue
        summary, units = metrics_of(columns, names, value["block_tokens"])
        for name, made in summary.items():
            _hold(part, name, name, value[name], made, findings)
        for said, made in zip(value["units"], units, strict=True):
            unit = said["name"]
            bits = 8 * said["bytes"] / said["parameters"] if said["parameters"] else None
            findings.same(part, f"{unit} bits", said.get("bits_per_weight"), bits, "its bytes make")
            for name in ("local", "accumulated"):
                _hold_decibels(part, f"{unit} {name}", said.get(name), findings)
            for name in made:
                _hold(
                    part, f"{unit} {name}", f"{unit}.{name}", said.get(name), made[name], findings
                )


def _hold(
    part: str, name: str, path: str, said: Any, made: Mapping[str, Any], findings: Findings
) -> None:
    """Holds what is said against what its columns make, which has to be there in full."""
    if (absent := _absent(path, said, made)) is not None:
        findings.wrong(part, name, f"{absent} is not there")
        return
    found = differences(path, said, made, of="its columns'")
    findings.judge(part, name, (d.words for d in found))


def _hold_scores(
    part: str,
    columns: Columns,
    scores: Scores,
    extras: Mapping[str, NDArray],
    findings: Findings,
) -> None:
    """Holds what the columns have of the run against the run's scores."""
    kld = None if scores.against is None else scores.against.kld
    whole = {"index": scores.index, "kld": kld, "weight": extras.get("weight")}
    for name, of_run in whole.items():
        own = columns.get(name)
        is_same = own is of_run is None or (
            own is not None and of_run is not None and np.array_equal(own, of_run)
        )
        words = [] if is_same else ["is not that of the run's scores"]
        findings.judge(part, f"column {name}", words)


def _hold_decibels(part: str, name: str, said: Any, findings: Findings) -> None:
    """Holds an error's decibels against the error itself; None is of a model that did not run."""
    if said is None:
        return
    error = said.get("relative_error") if isinstance(said, dict) else None
    if not isinstance(error, float | int | None) or not isinstance(said, dict):
        findings.wrong(part, name, "is no error")
        return
    made = {"sqnr_db": -20 * math.log10(error) if error and error > 0 else None}
    found = differences(name, {"sqnr_db": said.get("sqnr_db")}, made, of="its error's")
    findings.judge(part, name, (d.words for d in found))


def _absent(path: str, said: Any, made: Mapping[str, Any]) -> str | None:
    """The first field of `made`, however deep, that `said` lacks."""
    if not isinstance(said, dict):
        return path
    for name, value in made.items():
        here = f"{path}.{name}"
        if name not in said:
            return here
        if isinstance(value, Mapping) and (inner := _absent(here, said[name], value)) is not None:
            return inner
    return None
