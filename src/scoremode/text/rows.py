"""Rows of a data set's file: Parquet or JSON lines, plain or packed by gzip; and which of them a seed
draws."""

import json
from collections.abc import Sequence
from typing import Any

from scoremode.errors import CorpusError, words_of
from scoremode.lib.files import MOST_TEXT
from scoremode.text.gzipped import unpacked
from scoremode.text.stopping import drawn_order

__all__ = ["decoded", "drawn_rows", "read_rows", "row_names"]

# Rows of a Parquet file that are unpacked at a time: a value that its file has once may stand in all.
_BATCH = 64


def drawn_rows(rows: Sequence[int], count: int, seed: int) -> list[int]:
    """The `count` of `rows` that `seed` draws, in their order: those whose sha256 of `seed:row` is
    the smallest. A row's place in the data set alone decides, not which others are kept."""
    among = set(rows)
    order = drawn_order(max(rows, default=-1) + 1, seed)
    return sorted([row for row in order if row in among][:count])


def read_rows(data: bytes, name: str, text_field: str | None) -> list[Any]:
    """The column or field `text_field` of the Parquet or JSON lines that a file of that name holds;
    without one whole rows.

    Raises CorpusError.
    """
    if name.lower().endswith(".parquet"):
        return _read_parquet(data, name, text_field)
    return _read_jsonl(_lines(data, name), name, text_field)


def row_names(data: bytes, name: str, rows: int) -> list[str]:
    """What to call the rows that `read_rows` gives: a line by its number, one of Parquet by its place,
    the first being 0."""
    if name.lower().endswith(".parquet"):
        return [f"{name}, row {i}" for i in range(rows)]
    lines = _lines(data, name).split("\n")
    return [f"{name}, line {i}" for i, line in enumerate(lines, 1) if line.strip()]


def _lines(data: bytes, name: str) -> str:
    """The JSON lines in `data`, without the byte order mark that PowerShell puts before the first."""
    return decoded(unpacked(data, name), name).removeprefix("\ufeff")


def _read_parquet(data: bytes, name: str, text_field: str | None) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        columns = file.schema_arrow.names
        if text_field is not None and columns.count(text_field) != 1:
            count = "several columns" if text_field in columns else "no column"
            raise CorpusError(f"{name}: {count} {text_field!r}: it has {', '.join(columns)}")
        return _unpacked_rows(file, name, text_field)
    # ValueError: a row not utf-8; OverflowError: a time that Python has no date for.
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = words_of(error, named=False)
        raise CorpusError(f"{name}: not a readable Parquet file: {reason}") from None


def _unpacked_rows(file: Any, name: str, text_field: str | None) -> list[Any]:
    """The rows of a pyarrow `ParquetFile`, or their values in one column.

    Raises CorpusError for more than MOST_TEXT bytes: few that are packed may stand for any number.
    """
    import pyarrow as pa

    chosen = None if text_field is None else [text_field]
    found, room = [], MOST_TEXT
    for batch in file.iter_batches(_BATCH, columns=chosen, use_threads=False):
        arrays = [
            c.dictionary_decode() if isinstance(c, pa.DictionaryArray) else c for c in batch.columns
        ]
        room -= sum(array.nbytes for array in arrays)
        if room < 0:
            raise CorpusError(f"{name}: unpacks to more than {MOST_TEXT >> 20:,} MiB")
        found += batch.to_pylist() if text_field is None else arrays[0].to_pylist()
    return found


def _read_jsonl(text: str, name: str, text_field: str | None) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", error)
            raise CorpusError(f"{name}: line {number} is not JSON: {reason}") from None
        if text_field is None:
            rows.append(value)
        elif isinstance(value, dict) and text_field in value:
            rows.append(value[text_field])
        else:
            raise CorpusError(f"{name}: line {number} has no field {text_field!r}")
    return rows


def decoded(data: bytes, name: str) -> str:
    """The text that bytes of utf-8 are. Raises CorpusError."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name}: not utf-8 at byte {error.start}") from None
