"""Columns of a Parquet file: numbers, and one of texts."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_folders import scores_of, write_run

from scoremode.errors import RunFolderError
from scoremode.results.folders.columns import read_parquet
from scoremode.results.folders.finished import open_run, read_verified
from scoremode.results.folders.store import read_columns, read_record


def written(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_numbers_and_texts_come_back(tmp_path):
    path = written(tmp_path / "x", a=np.array([1, 2]), token_text=["é", "<0xE2>"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = read_parquet(path, digest)
    assert found["a"].tolist() == [1, 2] and found["token_text"].tolist() == ["é", "<0xE2>"]
    with pytest.raises(RunFolderError, match="is damaged or another's"):
        read_parquet(path, "0" * 64)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"other": ["a"]}, "column other is of string, not of numbers"),
        ({"token_text": [1]}, "column token_text is of int64, not of text"),
        ({"token_text": [None, "a"]}, "column token_text has gaps"),
        ({"token_text": [b"a"]}, "column token_text is of binary"),
    ],
)
def test_other_columns_are_refused(columns, said, tmp_path):
    with pytest.raises(RunFolderError, match=said):
        read_parquet(written(tmp_path / "x", **columns), None)


def texts_of(targets: np.ndarray) -> np.ndarray:
    return np.array([f"t{i}" for i in targets], dtype=object)


def test_texts_of_a_run_are_read_and_change_no_number(tmp_path):
    scores = scores_of(0.3)
    plain = write_run(tmp_path / "plain", scores)
    extras = {"token_text": texts_of(scores.target)}
    folder = write_run(tmp_path / "x", scores, extras=extras, changes={"scores.token_text": True})
    assert open_run(folder).record["metrics"] == open_run(plain).record["metrics"]
    _, read = read_verified(folder, read_record(folder))
    assert (read["token_text"] == extras["token_text"]).all()


def test_a_column_that_the_record_does_not_have_is_refused(tmp_path):
    scores = scores_of(0.3)
    folder = write_run(tmp_path / "x", scores, extras={"token_text": texts_of(scores.target)})
    with pytest.raises(RunFolderError, match="token_text is not as the record has it"):
        open_run(folder)
    other = write_run(tmp_path / "y", scores, changes={"scores.token_text": True})
    with pytest.raises(RunFolderError, match="token_text is not as the record has it"):
        open_run(other)


def test_a_token_with_two_texts_is_refused(tmp_path):
    scores = scores_of(0.3)
    texts = texts_of(scores.target)
    texts[5] = "another"
    path = written(tmp_path / "x", **scores.columns(), token_text=texts)
    with pytest.raises(RunFolderError, match=f"two texts for token {scores.target[5]}"):
        read_columns(path)
