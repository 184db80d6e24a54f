"""Runs as a table, whoever shows them."""

import csv
import io

from support.run_folders import scores_of, write_run

from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.document import data
from scoremode.report.forms.text import table_text
from scoremode.report.runs import runs_table
from scoremode.results.comparison.rows import base_row, run_row
from scoremode.results.folders.store import read_record


def test_a_base_is_a_line_of_its_own(tmp_path):
    record = read_record(write_run(tmp_path / "one", scores_of(0.3)))
    base = base_row(record)
    assert base is not None
    rows = [base, run_row(record, tmp_path / "one", "one") | {"rank": 1, "more": 7}]
    table = runs_table(rows, {"more": data("more")})
    _, _, first, second = table_text(table).splitlines()
    metrics = record["metrics"]
    assert first.split()[:2] == ["base", f"{metrics['ppl_base']['value']:.4f}"]
    assert " base " in first and f"{metrics['kld']['value']:.4g}" in second
    ours, theirs = csv.DictReader(io.StringIO(table_csv(table)))
    assert (ours["is_base"], ours["ppl_ratio"], ours["more"]) == ("1", "", "")
    assert float(theirs["kld_nats"]) == metrics["kld"]["value"] and theirs["more"] == "7"
    assert float(theirs["ppl_ratio_high"]) == metrics["ppl_ratio"]["ci95"][1]
    assert (theirs["rank"], theirs["size_gib"]) == ("1", "0.5")
