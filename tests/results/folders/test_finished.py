"""Finished runs: their numbers are made again from their Scores, and what disagrees is refused."""

import re
import shutil
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.run_folders import scores_of, with_record

from scoremode.cli.main import main
from scoremode.errors import RunFolderError
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import read_record, seal_of

METRIC = {"value": 1.0, "ci95": None, "n": 1, "note": None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "running", "parts": []}, "is not done: its status is 'running'"),
        ({"status": "invalid", "reason": "nll is nan"}, "'invalid' (nll is nan)"),
        ({"status": 1}, "its status is 1, not one of running, done, shard, invalid"),
        ({"schema": "another"}, "its record is 'another' version 2"),
        (
            {"schema_version": 3},
            "version 3 (a newer scoremode's), not 'scoremode.record' version 2",
        ),
        ({"schema_version": 1}, "version 1, not 'scoremode.record' version 2"),
        ({"metrics": {}}, "has no metrics.ppl"),
        ({"metrics.ppl.value": "1"}, "its metrics.ppl.value is '1', not a number"),
        ({"protocol": None}, "its protocol is None, not an object"),
        ({"checkpoint": []}, "its checkpoint is [], not an object"),
        ({"metrics.top1": 0.5}, "its metrics.top1 is 0.5, not an object"),
        ({"metrics.ppl.ci95": [None]}, "its metrics.ppl.ci95 is [None], not a list of 2"),
        ({"metrics.ppl.ci95": [None, 1.0]}, "its metrics.ppl.ci95.0 is None, not a number"),
        ({"metrics.kld.value": 1.0}, "its metrics.kld.value is 1.0, and its scores give 0.02803"),
        ({"metrics.ppl": {"value": 1.0}}, "has no metrics.ppl.ci95"),
        ({"metrics.own": {"value": 1.0}}, "has no metrics.own.ci95"),
        ({"metrics.own": METRIC}, "has metrics.own, which its scores don't give"),
        ({"protocol.context_length": None}, "its protocol.context_length is None"),
        ({"protocol.context_length": "64"}, "its protocol.context_length is '64'"),
        ({"metrics.nll.value": 2.0}, "its metrics.nll.value is 2.0, and its scores give 2.325"),
        ({"metrics.nll.value": None}, "its metrics.nll.value is None, not a number"),
        ({"metrics.nll.value": 10**400}, "000000…, not a number"),
        ({"distribution.kld.99": 0.1}, "its distribution.kld.99 is 0.1, and its scores give 0."),
        ({"breakdown.position": []}, "its breakdown.position is [], and its scores give [{"),
        ({"llama_cpp.kld.value": 0.1}, "its llama_cpp.kld.value is 0.1, and its scores give 0."),
        ({"engine.seconds.load": "x"}, "its engine.seconds.load is 'x', not a number"),
        ({"plan.scored": 5}, "has 15,687 rows, more than the 5 of its run"),
    ],
)
def test_what_is_no_finished_run_is_refused(changes, said, one):
    folder = one(changes)
    with pytest.raises(RunFolderError, match=re.escape(said)) as refused:
        ranking([folder])
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("section", ["distribution", "breakdown", "llama_cpp"])
def test_a_section_that_its_scores_do_not_give_is_refused(section, one):
    folder = one({section: {}}, scores=replace(scores_of(0.3), against=None))
    with pytest.raises(RunFolderError, match=f"has {section}, which its scores don't give"):
        ranking([folder])


def test_what_cannot_be_read_is_refused(one, written, tmp_path):
    with pytest.raises(RunFolderError, match="no readable record"):
        ranking([tmp_path / "nothing"])
    folder = one()
    (folder / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        RunFolderError, match=r"scores\.parquet: is damaged or another's: its sha256"
    ):
        ranking([folder])
    shutil.copy(written["alone"] / "scores.parquet", folder)
    with pytest.raises(
        RunFolderError, match=r"scores\.parquet: is damaged or another's: its sha256"
    ):
        ranking([folder])
    (folder / "scores.parquet").unlink()
    with pytest.raises(RunFolderError, match="missing, and the record alone is not believed"):
        ranking([folder])


@pytest.mark.parametrize("is_sealed", [True, False])
def test_an_edited_perplexity_is_named_with_both_values(is_sealed, whole, spoiled, capsys):
    record = read_record(whole)
    true = record["metrics"]["ppl"]["value"]
    record["metrics"]["ppl"]["value"] = 4.9
    if is_sealed:
        record["sha256"] = seal_of(record)
    assert main(["compare", str(with_record(spoiled, record))]) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert f"its metrics.ppl.value is 4.9, and its scores give {true}" in err


@settings(max_examples=60)
@given(st.floats(0, 0.999999), st.integers(0, 7))
@example(0.0, 0)
def test_any_bit_of_the_scores_is_missed(whole, spoiled, place, bit):
    shutil.copy(whole / "record.json", spoiled)
    content = bytearray((whole / "scores.parquet").read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    (spoiled / "scores.parquet").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"scores\.parquet: is damaged"):
        load_run(spoiled)
    shutil.copy(whole / "scores.parquet", spoiled)
