"""A shard's folder as it may be believed, and the shards that paths stand for."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.shard_runs import asked, edited, refusal, run

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.errors import RunFolderError, UsageError
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RECORD, SCORES
from scoremode.results.shards import Shard
from scoremode.results.shards.checks import open_shard, shard_folders


@pytest.fixture(scope="module")
def one(demo, tmp_path_factory):
    return run(asked(demo, tmp_path_factory.mktemp("runs"), 5000), shard="2/3").folder


def test_a_shard_is_read_as_it_was_written(one):
    opened = open_shard(one)
    assert opened.shard == Shard(2, 3) and opened.title == f"{one} (shard 2/3)"
    tables = list(opened.tables())
    begin, behind = opened.record.document["shard"]["passes"]
    # A row group a pass, as a whole run has them.
    assert len(tables) == behind - begin
    whole = pa.concat_tables(tables)
    assert whole.equals(pq.read_table(one / SCORES))
    assert np.array_equal(np.unique(whole["window"].to_numpy()), [*opened.windows])
    # No other reader takes it for a run.
    with pytest.raises(RunFolderError) as refused:
        load_run(one)
    assert str(refused.value) == (
        f"{one}: is shard 2/3 of a run, and no whole one: scoremode merge makes the run of all 3"
    )


def test_parts_that_a_kill_left_behind_are_nothing_of_the_shard(one, tmp_path):
    folder = shutil.copytree(one, tmp_path / "left")
    (folder / "parts").mkdir()
    (folder / "parts" / "00000.parquet").write_bytes(b"old")
    assert open_shard(folder).record.document == open_shard(one).record.document
    assert sorted(p.name for p in folder.iterdir()) == ["parts", RECORD, SCORES]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda r: r["shard"].pop("passes"), "has no shard.passes"),
        (lambda r: r.pop("schedule"), "has no schedule"),
        (lambda r: r.pop("shard"), "has no shard"),
        (lambda r: r["identity"].pop("shard"), "its shard is 2/3, and its identity's None"),
        (lambda r: r["shard"].update(number=4), "its identity.shard.number is 2"),
        (lambda r: r["shard"].update(of_passes=9), "its passes are"),
        (lambda r: r["shard"].update(windows=[9, 9]), "its windows are 9 to 9"),
        (lambda r: r["shard"].update(targets=10**6), "with 1000000 targets"),
        (lambda r: r.update(status="invalid", reason="x"), "shard 2/3 is not done: its status"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(one, tmp_path, change, words):
    bad = edited(one, tmp_path / "bad", change)
    said = refusal(open_shard, bad)
    assert words in said and str(bad) in said, said


def _rewritten(one, target, change):
    """A copy whose scores were changed, with the hash that they then have."""
    shutil.copytree(one, target)
    table = pq.read_table(target / SCORES)
    columns = {name: table[name].to_numpy().copy() for name in table.column_names}
    columns = change(columns) or columns
    pq.write_table(pa.table(columns), target / SCORES)
    sha256 = hash_file(target / SCORES)
    again = target.with_name(target.name + "-sealed")
    return edited(target, again, lambda r: r["scores"].update(sha256=sha256))


def _shift(columns):
    columns["window"] = columns["window"] + np.int32(1)


def _swap(columns):
    """Its windows, those behind first."""
    middle = int(np.searchsorted(columns["window"], columns["window"][0] + 4))
    for name, column in columns.items():
        columns[name] = np.concatenate([column[middle:], column[:middle]])


def _worse(columns):
    columns["logprob"][3] = np.nan


@pytest.mark.parametrize(
    "change, words",
    [
        (_shift, "has 8 windows from"),
        (_worse, "is not finite"),
        (_swap, "its scores are not in the order of their windows"),
        (lambda c: {name: column[:-1] for name, column in c.items()}, "scores, and its record"),
        (lambda c: c.pop("target") is None, "has no column target"),
    ],
)
def test_scores_that_the_record_isnt_of_are_refused(one, tmp_path, change, words):
    bad = _rewritten(one, tmp_path / "bad", change)
    said = refusal(lambda: list(open_shard(bad).tables()))
    assert words in said and str(bad / SCORES) in said, said


def test_the_shards_that_paths_stand_for(one, demo, tmp_path):
    runs = tmp_path / "runs"
    inside = shutil.copytree(one, runs / "b")
    whole = run(asked(demo, runs, 2000)).folder
    told = []
    assert shard_folders([runs], told.append) == [inside]
    assert told == [f"left out: {whole}: is no shard"]
    # What is named is refused by whoever opens it, and not left out.
    assert shard_folders([whole, inside], told.append) == [whole, inside]
    with pytest.raises(UsageError, match="the same run twice"):
        shard_folders([inside, inside], told.append)
    with pytest.raises(RunFolderError, match="is not there"):
        shard_folders([tmp_path / "nothing"], told.append)
    begun = edited(one, runs / "c", lambda r: r.update(status="running", parts=[]))
    assert set(shard_folders([runs], told.append)) == {inside, begun}
    assert json.loads((begun / RECORD).read_text())["status"] == "running"
