"""Files beside the Scores of a run of requests: what was asked for, and what the answers come to.

`requests.parquet` has a row a request: whose it is, its texts, and its log-likelihood, which is the sum
over its windows' targets; of a page its words and bytes as well. Whoever reads a run makes these sums,
and perplexities a word, of the Scores again. `answers.parquet` has a row for each metric of each
question, as whoever asked made it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import RunFolderError, words_of
from scoremode.lib.files import atomic
from scoremode.results.folders.columns import bytes_of, is_text, texts_of, unpacked
from scoremode.results.record.differences import differences
from scoremode.results.scores import Scores
from scoremode.results.statistics.pages import pages_section
from scoremode.text.asked import PlannedAsked

__all__ = [
    "ANSWERS",
    "REQUESTS",
    "Answers",
    "answers_of",
    "check_answered",
    "read_table",
    "write_requests",
    "write_table",
]

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
    """The answers to requests whose windows are as `PlannedAsked` has them."""
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


def write_requests(folder: Path, planned: PlannedAsked, answers: Answers) -> dict[str, Any]:
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


def read_table(path: Path, section: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The columns of a file that `write_table` wrote, by name; `section`: what it returned then.

    Raises RunFolderError for a file that is another.
    """
    # A row's context may be as long as the model reads: MOST_TEXT bounds them all, however packed.
    data = bytes_of(path, section["sha256"], None)
    table = unpacked(path, data, section["rows"])
    if table.num_rows != section["rows"]:
        raise RunFolderError(f"{path}: has {table.num_rows} rows, and the record {section['rows']}")
    return {
        name: texts_of(path, name, column).tolist() if is_text(column) else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def check_answered(folder: Path, record: Mapping[str, Any], scores: Scores) -> None:
    """Raises RunFolderError where the files of a run of requests are not those that its checked
    `record` names, and where a log-likelihood is not its Scores'."""
    if "tasks" in record:
        read_table(folder / ANSWERS, record["tasks"]["answers"])
    if "requests" not in record:
        return
    found = read_table(folder / REQUESTS, record["requests"])
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
        if "pages" in record:
            words, byte_counts = (np.array(found[n], np.int64) for n in ("words", "bytes"))
            pages = pages_section(words, byte_counts, made["logprob"], made.get("base_logprob"))
            for wrong in differences("pages", record["pages"], pages, of="its pages"):
                raise RunFolderError(f"{folder}: its record: {wrong.words}")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder / REQUESTS}: its requests are not the scores': {words_of(error, 100)}"
        ) from None
