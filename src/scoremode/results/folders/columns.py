"""Columns of a Parquet file, as far as they may be believed without the rest of the run."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.errors import RunFolderError, words_of

__all__ = [
    "LABEL",
    "TOKEN_TEXT",
    "Columns",
    "check_conversations",
    "check_texts",
    "read_parquet",
    "row_groups",
]

Columns = dict[str, np.ndarray]

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


def read_parquet(path: Path, sha256: str | None) -> Columns:
    """All columns of a Parquet file of numbers, texts of tokens and labels. Raises RunFolderError.

    Before they are parsed, its bytes must have that `sha256`; what is hashed is what is parsed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = _bytes(path, sha256)
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            # Without threads: where the system gives Arrow none, `read_table` waits for ever.
            table = file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not readable: {words_of(error, named=False)}") from None
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in (TOKEN_TEXT, LABEL):
            if not pa.types.is_string(column.type):
                raise RunFolderError(f"{path}: its column {name} is of {column.type}, not of text")
        elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise RunFolderError(f"{path}: its column {name} is of {column.type}, not of numbers")
        if column.null_count:
            raise RunFolderError(f"{path}: its column {name} has gaps")
    return {name: table.column(name).to_numpy() for name in table.column_names}


def row_groups(path: Path, sha256: str) -> Iterator[Any]:
    """The same file as it was written: an Arrow table for each of its row groups. Raises
    RunFolderError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = _bytes(path, sha256)
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not readable: {words_of(error, named=False)}") from None


def _bytes(path: Path, sha256: str | None) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: not readable: {error.strerror}") from None
    if sha256 is not None and (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise RunFolderError(
            f"{path}: is damaged or another's: its sha256 is {found[:12]}…, and the record has "
            f"{sha256[:12]}…"
        )
    return data
