"""Columns of a Parquet file: numbers, and one of texts."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.run_folders import scores_of, write_run

from scoremode.errors import RunFolderError
from scoremode.results.folders.finished import open_run, read_verified
from scoremode.results.folders.store import read_columns
from scoremode.results.folders.tables import read_parquet, row_groups
from scoremode.results.record.checks import check_done, checked_record


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
    assert open_run(folder).record.document["metrics"] == open_run(plain).record.document["metrics"]
    _, read = read_verified(folder, check_done(folder, checked_record(folder)))
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


class TestSizes:
    """What few bytes stand for is refused by what the file says of itself, before it is unpacked."""

    @pytest.fixture(autouse=True)
    def unread(self, monkeypatch):
        def read(*_, **__):
            raise AssertionError("unpacked")

        monkeypatch.setattr(pq.ParquetFile, "read", read)
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)

    def test_more_rows_than_the_run_has(self, tmp_path):
        path = written(tmp_path / "x", a=range(101))
        with pytest.raises(RunFolderError, match="has 101 rows, more than the 100 of its run"):
            read_parquet(path, None, 100)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(RunFolderError, match="has 101 rows, more than the 100 of its run"):
            list(row_groups(path, digest, 100))

    def test_rows_that_no_record_bounds(self, tmp_path):
        """Of a record that promises them as well."""
        rows = 2_000_000
        columns = {f"c{i}": pa.repeat(pa.scalar(1.0), rows) for i in range(10)}
        path = written(tmp_path / "x", **columns)
        assert path.stat().st_size < 100_000
        words = "has 2,000,000 rows of 10 values in .* bytes, which no scores fit into"
        with pytest.raises(RunFolderError, match=words):
            read_parquet(path, None, rows)

    def test_lists_of_numbers(self, tmp_path):
        ones = pa.repeat(pa.scalar(1), 20_000_000)
        column = pa.ListArray.from_arrays(pa.array([0, len(ones)], pa.int32()), ones)
        path = written(tmp_path / "x", windows=column)
        with pytest.raises(RunFolderError, match="which no scores fit into"):
            read_parquet(path, None, 1)

    def test_a_file_larger_than_its_rows(self, tmp_path):
        with (path := tmp_path / "x").open("wb") as file:
            file.truncate(1 << 36)
        for rows, most in ((1000, 1), (None, 1024)):
            words = f"not readable: has 68,719,476,736 bytes, more than {most:,} MiB"
            with pytest.raises(RunFolderError, match=words):
                read_parquet(path, None, rows)

    def test_types_that_ours_have_not(self, tmp_path):
        texts = pa.array([["a"]], pa.list_(pa.string()))
        with pytest.raises(
            RunFolderError, match=r"column other is of list<.*string>, not of text or"
        ):
            read_parquet(written(tmp_path / "x", other=texts), None, 1)


def test_texts_that_few_bytes_stand_for(tmp_path, monkeypatch):
    """Each is there once in memory, so that what they come to is known before it is."""
    monkeypatch.setattr("scoremode.results.folders.tables.MOST_TEXT", 5_000_000)
    path = written(tmp_path / "x", token_text=["a" * 1000] * 5000)
    assert path.stat().st_size < 5000
    found = read_parquet(path, None, 5000)["token_text"]
    assert found[0] is found[-1] and len(found) == 5000
    path = written(tmp_path / "x", token_text=["a" * 1000] * 5001)
    with pytest.raises(
        RunFolderError, match="column token_text has more than 5,000,000 characters"
    ):
        read_parquet(path, None, 5001)
