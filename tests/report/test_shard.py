"""The table of a shard: what it has scored, and no number that could be taken for the text's."""

import csv
import io
from pathlib import Path

import pytest
from support.run_folders import ENGINE, REFERENCE

from scoremode.report.finished import finished_document
from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.text import document_text
from scoremode.report.shard import shard_document

RECORD = {
    "status": "shard",
    "shard": {"number": 2, "of": 4, "passes": [3, 5], "of_passes": 9, "windows": [24, 1400],
              "targets": 12_345},
    "plan": {"windows": 4000, "scored": 98_765},
    "checkpoint": {"source": "models/x\x1b[31m", "kv_cache_declared": None},
    "corpus": {"name": "made.txt", "rows": None, "row_limit": None,
               "text": {"rule": "rows", "bytes": 5000}},
    "protocol": {"name": "disjoint", "context_length": 64, "stride": 64, "scored": "all"},
    "engine": ENGINE,
    "seconds": {"score": 3.0, "write": 0.5, "total": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("verbose", [False, True])
def test_it_counts_from_one_and_says_that_it_is_no_whole(verbose):
    text = document_text(shard_document(RECORD, Path("runs/a"), verbose=verbose))
    rows = dict(line.split(None, 1) for line in text.splitlines() if line.strip())
    assert rows["shard"] == "2 of 4, done"
    assert "a part of the text: scoremode merge makes the run of 4 shards" in text
    assert rows["passes"] == "4 to 5 of 9" and rows["windows"] == "25 to 1,400 of 4,000"
    assert rows["targets"] == "12,345 of 98,765" and rows["record"] == "runs/a/record.json"
    assert "\x1b" not in text and "PPL" not in text and "KLD" not in text
    assert ("seconds" in rows) == verbose


def test_with_a_base_it_names_it_and_csv_has_plain_numbers():
    document = shard_document(RECORD | {"reference": REFERENCE}, Path("runs/a"))
    assert "models/base" in document_text(document)
    (row,) = csv.DictReader(io.StringIO(table_csv(document.data)))
    assert row["shard"] == "2" and row["of"] == "4" and row["reference"] == "models/base"
    assert (row["first_pass"], row["passes"], row["of_passes"]) == ("3", "2", "9")
    assert (row["first_window"], row["windows"], row["targets"]) == ("24", "1376", "12345")


def test_one_shard_of_one_is_no_run_either():
    one = RECORD | {"shard": RECORD["shard"] | {"number": 1, "of": 1}}
    text = document_text(shard_document(one, Path("a")))
    assert "it is all of the run: scoremode merge makes the run of 1 shard" in text


def test_a_finished_runs_table_is_a_shards_by_its_status():
    assert finished_document(RECORD, Path("runs/a")).data == (
        shard_document(RECORD, Path("runs/a")).data
    )
