"""An attribution's numbers on disk: KL divergences of all variants at every target, one file of them.

`attribution-BY.parquet` has `index` (int64, the target's place in the token stream), `kld` of the whole
model, and for each unit `alone NAME` and `without NAME`, all float64 [N] in nats, in the order of the
run's scores; and their `weight`, where an evaluation may count otherwise than once. Everything that
`attribution-BY.json` says in nats is made of them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.lib.files import atomic
from scoremode.results.folders.columns import read_parquet
from scoremode.results.statistics.means import Blocks, Mean, estimates

__all__ = ["Columns", "column_of", "file_of", "metrics_of", "read_attributed", "write_columns"]

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray]


def file_of(folder: Path, by: str, kind: str) -> Path:
    """The file of a run's attribution by layer, module or kind: `json` or `parquet`."""
    return folder / f"attribution-{by}.{kind}"


def column_of(direction: str, unit: str) -> str:
    """The name of the column of one unit's variant, `alone` or `without`."""
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
    return read_parquet(path, sha256, rows, row_bytes=12 * (2 * units + 3))


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
    return summary, [{name: said(unit, name) for name in of_units} for unit in units]
