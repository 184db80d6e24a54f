"""Parquet files of a run folder, read as columns within bounds: the Scores' columns and the requests'.

`requests.parquet` has a row a request: whose it is, its texts, and its log-likelihood, which is the
sum over its windows' targets; of a page its words and bytes as well. Whoever reads a run makes these
sums, and perplexities a word, of the Scores again. `answers.parquet` has a row for each metric of
each question, as whoever asked made it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import RunFolderError, words_of
from scoremode.lib.files import MOST_TEXT, atomic, read_regular
from scoremode.results.record.definition import Done
from scoremode.results.record.section import differences
from scoremode.results.record.text import AnswersFile, RequestsFile
from scoremode.results.scores import Scores
from scoremode.results.statistics.bootstrap import pages_section
from scoremode.text.task_requests import PlannedCorpus

REQUESTS, ANSWERS = "requests.parquet", "answers.parquet"


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to R requests.

    - `logprob` float64 [R]: the sum over each one's targets, in nats.
    - `is_greedy` bool [R]: whether every target is the likeliest token, the smallest id on ties.
    - `base_logprob`, `base_is_greedy`: the base's, None where there is none.
    """

    logprob: NDArray[np.float64]
    is_greedy: NDArray[np.bool_]
    base_logprob: NDArray[np.float64] | None = None
    base_is_greedy: NDArray[np.bool_] | None = None

    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: column for name, column in vars(self).items() if column is not None}


def answers_of(scores: Scores, window: NDArray[np.int64], begin: NDArray[np.int64]) -> Answers:
    """The answers to requests whose windows are as `PlannedCorpus` has them."""
    own = _summed(scores.window, scores.logprob, scores.top1 != scores.target, window, begin)
    if (base := scores.against) is None:
        return Answers(*own)
    theirs = base.base_logprob, base.base_top1 != scores.target
    return Answers(*own, *_summed(scores.window, *theirs, window, begin))


def _summed(
    of: NDArray[np.int32],
    logprob: NDArray[np.float64],
    missed: NDArray[np.bool_],
    window: NDArray[np.int64],
    begin: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    # One entry more, for requests without a target: their window is -1.
    count = int(of.max()) + 2
    sums = np.bincount(of, logprob, count)[window]
    misses = np.bincount(of, missed, count)[window]
    requests = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    size = len(begin) - 1
    summed = np.bincount(requests, sums, size).astype(np.float64, copy=False)
    return summed, np.bincount(requests, misses, size) == 0


def write_requests(folder: Path, planned: PlannedCorpus, answers: Answers) -> dict[str, Any]:
    """Writes the file; returns the record's section `requests`."""
    import pyarrow as pa

    requests, sizes = planned.requests, planned.sizes
    of_pages = {} if sizes is None else {"words": sizes[:, 0], "bytes": sizes[:, 1]}
    columns = {
        "task": pa.array([r.task for r in requests], pa.string()),
        "question": np.array([r.question for r in requests], np.int32),
        "place": np.array([r.place for r in requests], np.int32),
        "context": pa.array([r.context for r in requests], pa.string()),
        "continuation": pa.array([r.continuation for r in requests], pa.string()),
        "windows": pa.ListArray.from_arrays(planned.begin.astype(np.int32), planned.window),
        **of_pages,
        **answers.columns(),
    }
    made = write_table(folder / REQUESTS, pa.table(columns))
    return {**made, "shortened": planned.shortened}


def write_table(path: Path, table: Any) -> dict[str, Any]:
    """Writes an Arrow table; returns the file's `name`, `rows` and `sha256`. Raises RunFolderError."""
    import pyarrow.parquet as pq

    buffer = BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    with atomic(path) as tmp:
        tmp.write_bytes(data)
    return {
        "name": path.name,
        "rows": table.num_rows,
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def read_table(path: Path, section: RequestsFile | AnswersFile) -> dict[str, list[Any]]:
    """The columns of a file that `write_table` wrote, by name; `section`: the record's of the file.

    Raises RunFolderError for a file that is another.
    """
    # A row's context may be as long as the model reads: MOST_TEXT bounds them all, however packed.
    data = bytes_of(path, section.sha256, None)
    table = unpacked(path, data, section.rows)
    if table.num_rows != section.rows:
        raise RunFolderError(f"{path}: has {table.num_rows} rows, and the record {section.rows}")
    return {
        name: texts_of(path, name, column).tolist() if is_text(column) else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def check_answered(folder: Path, record: Done, scores: Scores) -> None:
    """Raises RunFolderError where the files of a run of requests are not those that its checked
    `record` names, and where a log-likelihood is not its Scores'."""
    if record.tasks:
        read_table(folder / ANSWERS, record.tasks.answers)
    if not record.requests:
        return
    found = read_table(folder / REQUESTS, record.requests)
    try:
        begin = np.cumsum([0, *map(len, found["windows"])])
        window = np.array([w for each in found["windows"] for w in each], np.int64)
        made = answers_of(scores, window, begin).columns()
        for name, column in made.items():
            differ = np.flatnonzero(np.asarray(found[name]) != column)
            if len(differ):
                i = int(differ[0])
                raise RunFolderError(
                    f"{folder / REQUESTS}: request {i} has {name} {found[name][i]}, and the scores "
                    f"give {column[i]}"
                )
        if record.pages:
            words, byte_counts = (np.array(found[n], np.int64) for n in ("words", "bytes"))
            pages = pages_section(words, byte_counts, made["logprob"], made.get("base_logprob"))
            for wrong in differences("pages", record.document["pages"], pages, of="its pages"):
                raise RunFolderError(f"{folder}: its record: {wrong.words}")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder / REQUESTS}: its requests are not the scores': {words_of(error, 100)}"
        ) from None


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


def most_bytes(rows: int, row_bytes: int = ROW_BYTES) -> int:
    """The most bytes of a run's Parquet file with so many rows."""
    return _FILE_BYTES + row_bytes * rows


def bytes_of(path: Path, sha256: str | None, rows: int | None, row_bytes: int = ROW_BYTES) -> bytes:
    """The bytes of a run's Parquet file, no more than so many rows can take, with that sha256. Raises
    RunFolderError."""
    most = MOST_TEXT if rows is None else most_bytes(rows, row_bytes)
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
