"""Rows of a data set's file (Parquet or JSON lines, plain or gzipped), a seed's sample of them, and the
labels of their groups."""

import io
import json
import zlib
from collections.abc import Sequence
from gzip import BadGzipFile, GzipFile
from typing import Any

from scoremode.errors import CorpusError, words_of
from scoremode.lib.files import MOST_TEXT
from scoremode.text.stopping import drawn_order

__all__ = [
    "check_labels",
    "decoded",
    "drawn_rows",
    "label_of",
    "read_rows",
    "row_names",
    "unpacked",
]

# Rows of a Parquet file that are unpacked at a time: a value that its file has once may stand in all.
_BATCH = 64
# A field of more values than these is no group's name but each row's own.
_MOST_LABELS = 256
_LONGEST = 200


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
    """Names for the rows that `read_rows` returns: a line's number from 1, a Parquet row's place from
    0."""
    if name.lower().endswith(".parquet"):
        return [f"{name}, row {i}" for i in range(rows)]
    lines = _lines(data, name).split("\n")
    return [f"{name}, line {i}" for i, line in enumerate(lines, 1) if line.strip()]


def unpacked(data: bytes, name: str) -> bytes:
    """The bytes of a data set's file, unpacked where its name ends in .gz.

    Raises CorpusError for a file that is not gzip, breaks off, or holds more than MOST_TEXT bytes.
    """
    if not name.lower().endswith(".gz"):
        return data
    try:
        with GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(MOST_TEXT + 1)
    except (BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{name}: not a readable gzip file: {error}") from None
    if len(found) > MOST_TEXT:
        raise CorpusError(f"{name}: unpacks to more than {MOST_TEXT >> 20:,} MiB")
    return found


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


def label_of(value: Any, where: str, field: str, more: str = "") -> str:
    """The label that a row's field holds: a text or a whole number. Raises CorpusError, which ends with
    `more`."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value).strip()
        if text and len(text) <= _LONGEST and _is_unicode(text):
            return text
    raise CorpusError(f"{where}: {field} is {str(value)[:40]!r}, which names no group{more}")


def check_labels(labels: Sequence[str], what: str) -> None:
    """Raises CorpusError where rows have too many labels for a table."""
    if (count := len(set(labels))) > _MOST_LABELS:
        raise CorpusError(f"{what}: makes {count:,} groups, and a table has {_MOST_LABELS} at most")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
