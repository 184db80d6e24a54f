"""Columns of a Parquet file, as far as they may be believed without the rest of the run."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.errors import RunFolderError, words_of
from scoremode.lib.files import MOST_TEXT, read_regular

__all__ = [
    "LABEL",
    "ROW_BYTES",
    "TOKEN_TEXT",
    "Columns",
    "bytes_of",
    "check_conversations",
    "check_texts",
    "is_text",
    "read_parquet",
    "row_groups",
    "texts_of",
    "unpacked",
]

Columns = dict[str, np.ndarray]

# The most bytes that a file takes, and each of its rows besides: some thirty numbers and a text.
_FILE_BYTES, ROW_BYTES = 1 << 20, 1 << 10
# What few bytes may stand for: a target's place in the text alone takes a byte, and twenty columns can
# be constant, where a model says the same of every token.
_FREE_VALUES, _VALUES_A_BYTE = 1 << 24, 1 << 4

# The columns of text: what each target spells (`TokenTable.texts`), and the group of its conversation.
TOKEN_TEXT, LABEL = "token_text", "label"


def check_texts(path: Path, targets: np.ndarray, texts: np.ndarray) -> None:
    """Raises RunFolderError where one token id has two texts."""
    _, first, places = np.unique(targets, return_index=True, return_inverse=True)
    if len(wrong := np.flatnonzero(texts[first][places] != texts)):
        target = targets[wrong[0]]
        raise RunFolderError(f"{path}: its column {TOKEN_TEXT} has two texts for token {target}")


def check_conversations(path: Path, window: np.ndarray, conversation: np.ndarray) -> None:
    """Raises RunFolderError for what numbers no conversation, and for a window that is of two."""
    name = "conversation"
    if conversation.dtype != np.int32 or conversation.min(initial=0) < 0:
        raise RunFolderError(f"{path}: its column {name} has what is no conversation's number")
    _, first, places = np.unique(window, return_index=True, return_inverse=True)
    if len(wrong := np.flatnonzero(conversation[first][places] != conversation)):
        raise RunFolderError(f"{path}: its column {name} has two for window {window[wrong[0]]}")


def read_parquet(
    path: Path, sha256: str | None, rows: int | None = None, row_bytes: int = ROW_BYTES
) -> Columns:
    """All columns of a Parquet file of numbers, texts of tokens and labels. Raises RunFolderError.

    Before they are parsed, its bytes must have that `sha256`; what is hashed is what is parsed. Before
    they are unpacked, there must be no more than `rows`, of at most `row_bytes` each.
    """
    import pyarrow as pa

    data = bytes_of(path, sha256, rows, row_bytes)
    table = unpacked(path, data, rows)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise RunFolderError(f"{path}: its column {name} has gaps")
        if name in (TOKEN_TEXT, LABEL):
            if not is_text(column):
                raise RunFolderError(f"{path}: its column {name} is of {column.type}, not of text")
            columns[name] = texts_of(path, name, column)
        elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            columns[name] = column.to_numpy()
        else:
            kind = column.type.value_type if is_text(column) else column.type
            raise RunFolderError(f"{path}: its column {name} is of {kind}, not of numbers")
    return columns


def row_groups(path: Path, sha256: str, rows: int) -> Iterator[Any]:
    """The same file as it was written: an Arrow table for each of its row groups. Raises
    RunFolderError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = bytes_of(path, sha256, rows)
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            _check_size(path, file.metadata, len(data), rows)
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not readable: {words_of(error, named=False)}") from None


def unpacked(path: Path, data: bytes, rows: int | None) -> Any:
    """The Arrow table that the bytes of the Parquet file at `path` are, its texts as dictionaries, each
    text once. Raises RunFolderError for one of more than `rows`, of more than so many bytes can hold,
    and of other types than ours have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            _check_size(path, file.metadata, len(data), rows)
            schema = file.schema_arrow
        for field in schema:
            if not _is_known(field.type):
                raise RunFolderError(
                    f"{path}: its column {field.name} is of {field.type}, not of text or numbers"
                )
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts) as file:
            # Without threads: where the system gives Arrow none, `read_table` waits for ever.
            return file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not readable: {words_of(error, named=False)}") from None


def is_text(column: Any) -> bool:
    """Tells whether an Arrow column is a dictionary of texts, as `unpacked` makes it."""
    import pyarrow as pa

    return pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)


def texts_of(path: Path, name: str, column: Any) -> np.ndarray:
    """A column of texts, of which each is there once in memory, and None where there is none. Raises
    RunFolderError for more than MOST_TEXT characters of them."""
    found, room = [np.empty(0, object)], MOST_TEXT
    for chunk in column.chunks:
        # The last stands for what is not there.
        texts = np.array([*chunk.dictionary.to_pylist(), None], object)
        places = chunk.indices.fill_null(len(texts) - 1).to_numpy()
        lengths = np.array([0 if text is None else len(text) for text in texts])
        if (room := room - int(lengths[places].sum())) < 0:
            raise RunFolderError(
                f"{path}: its column {name} has more than {MOST_TEXT:,} characters"
            )
        found.append(texts[places])
    return np.concatenate(found)


def bytes_of(path: Path, sha256: str | None, rows: int | None, row_bytes: int = ROW_BYTES) -> bytes:
    """The bytes of a run's Parquet file, no more than so many rows can take, with that sha256. Raises
    RunFolderError."""
    most = MOST_TEXT if rows is None else _FILE_BYTES + row_bytes * rows
    try:
        data = read_regular(path, most, links=False)
    except OSError as error:
        raise RunFolderError(f"{path}: not readable: {error.strerror}") from None
    if sha256 is not None and (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise RunFolderError(
            f"{path}: is damaged or another's: its sha256 is {found[:12]}…, and the record has "
            f"{sha256[:12]}…"
        )
    return data


def _is_known(kind: Any) -> bool:
    """Tells whether an Arrow type is one of numbers, of texts, or of lists of numbers."""
    from pyarrow import types

    numbers = types.is_integer, types.is_floating, types.is_boolean
    if types.is_list(kind):
        return any(is_one(kind.value_type) for is_one in numbers)
    return types.is_string(kind) or any(is_one(kind) for is_one in numbers)


def _check_size(path: Path, metadata: Any, size: int, rows: int | None) -> None:
    """Raises RunFolderError for what would take much more memory than its bytes and its rows say."""
    if rows is not None and metadata.num_rows > rows:
        raise RunFolderError(
            f"{path}: has {metadata.num_rows:,} rows, more than the {rows:,} of its run"
        )
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    values = sum(g.column(i).num_values for g in groups for i in range(g.num_columns))
    values = max(values, metadata.num_rows * metadata.num_columns)
    if values > _FREE_VALUES + _VALUES_A_BYTE * size:
        raise RunFolderError(
            f"{path}: has {metadata.num_rows:,} rows of {metadata.num_columns} values in {size:,} "
            "bytes, which no scores fit into"
        )
