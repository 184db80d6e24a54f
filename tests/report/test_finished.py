"""Which table a finished run has."""

from dataclasses import replace

import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.report.divergence import kld_table, worst_table
from scoremode.report.finished import finished_table
from scoremode.report.table import reference_table, run_table
from scoremode.results.folders.store import read_record
from scoremode.results.statistics.worst import worst_tokens

SCORES = made(**overlapping(1000, CONTEXT, 64), noise=0.3)


@pytest.mark.parametrize("verbose", [False, True])
def test_each_kind_of_run_has_its_own(verbose, tmp_path):
    compared = write_run(tmp_path / "kld", SCORES)
    record = read_record(compared)
    shown = finished_table(record, compared, verbose=verbose)
    assert shown == kld_table(record, compared, verbose=verbose)
    alone = write_run(tmp_path / "ppl", replace(SCORES, against=None))
    record = read_record(alone)
    shown = finished_table(record, alone, verbose=verbose)
    assert shown == run_table(record, alone, verbose=verbose)
    states = {"rows": 2000, "width": 64, "dtype": "bfloat16"}
    head = {"vocabulary": 1024, "width": 64, "dtype": "bfloat16", "file": None,
            "checkpoint": {"path": "models/base"}}  # fmt: skip
    kept = record | {"kept": {"states": states, "head": head}}
    shown = finished_table(kept, alone, verbose=verbose)
    assert shown == reference_table(kept, alone, verbose=verbose) != run_table(kept, alone)
    assert "2,000 of 64 bfloat16, 0.000 GB" in shown and "left in models/base" in shown


def test_worst_tokens_are_shown_once_where_asked(tmp_path):
    assert SCORES.against is not None
    folder = write_run(tmp_path / "kld", SCORES)
    record = read_record(folder) | {"worst": worst_tokens(SCORES, SCORES.against)}
    table = worst_table(record["worst"])
    assert table not in finished_table(record, folder)
    for verbose in (False, True):
        text = finished_table(record, folder, verbose=verbose, worst=True)
        assert text.count(table) == 1 and text.endswith(table)
