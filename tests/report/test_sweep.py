"""What a sweep would do, as a table."""

from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.text import document_text
from scoremode.report.sweep import foreseen_document

ROW = {
    "model": "m",
    "is_base": False,
    "pair": 0,
    "state": "to run",
    "source": "here",
    "bytes": 2**31,
    "download": None,
    "seconds": 90.4,
    "error": None,
}
VALUE = {
    "output": "out",
    "rows": [ROW],
    "pairs": ["a text, disjoint"],
    "to_run": 1,
    "bytes": 2**31,
    "download": 0,
    "seconds": 90.4,
}


def test_a_line_a_run_and_what_they_come_to():
    rows = [ROW | {"model": "b", "is_base": True, "state": "done"}, ROW]
    text = document_text(foreseen_document(VALUE | {"rows": rows}))
    assert "b (the base)" in text and "why not" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["m", "1", "to", "run", "here", "2.000", "90"] in lines
    assert ["to", "run", "1", "of", "2"] in lines
    assert "90 s, by what earlier runs there took" in text and "to fetch" not in text
    assert table_csv(foreseen_document(VALUE).data).count("\n") == 2


def test_errors_downloads_and_a_time_that_nobody_knows():
    rows = [ROW, ROW | {"state": "failed", "error": "no \x1b[2J such folder", "bytes": None}]
    value = VALUE | {"rows": rows, "download": 2**30, "seconds": None}
    text = document_text(foreseen_document(value))
    assert "\x1b" not in text and "such folder" in text and "1.000 GiB from the hub" in text
    assert "not known: no finished run is there to tell" in text
    assert "150 min" in document_text(foreseen_document(VALUE | {"seconds": 9000.0}))


def test_several_texts_are_named():
    text = document_text(foreseen_document(VALUE | {"pairs": ["a\x1b, disjoint", "b, gptq"]}))
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    assert ["text", "1", "a\\x1b, disjoint"] in lines and ["text", "2", "b, gptq"] in lines
