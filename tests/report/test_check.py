"""check's findings as text: a line a part for what held, each reason once, the total last."""

from scoremode.report.check import check_document
from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.text import document_text

FINDINGS = [
    ("metrics", "ppl", "held", "46.95"),
    ("metrics", "nll", "held", "3.8"),
    ("metrics", "kld", "wrong", "its kld is 1, and its scores give 2"),
    ("metrics", "a interval", "unchecked", "not compared: made by 0.0.9"),
    ("metrics", "b interval", "unchecked", "not compared: made by 0.0.9"),
    ("text", "sha256", "held", "abc"),
]
VALUE = {
    "runs": [
        {
            "run": "runs/a",
            "model": "m\x1b[31m",
            "not_checked": ["command", "x\x1b[31m"],
            "findings": [dict(zip(("part", "name", "status", "words"), f, strict=True))
                         for f in FINDINGS],
            "second_run": {"windows": [1, 2], "of_windows": 20, "model": "m", "seed": 0,
                           "found_probability": {"1": 0.1, "10": 0.65132},
                           "targets": 100},
        }
    ],
    "left_out": ["runs/b: is not done"],
    "counts": {"held": 3, "unchecked": 3, "wrong": 1},
}  # fmt: skip


def test_what_held_is_one_line_and_the_rest_is_told():
    lines = document_text(check_document(VALUE)).splitlines()
    text = "\n".join(lines)
    assert "metrics             held: 2 (ppl, nll)" in text
    assert "metrics: kld        WRONG: its kld is 1, and its scores give 2" in text
    assert text.count("not compared: made by 0.0.9") == 1 and "metrics: 2 of them" in text
    assert "2 of 20 windows by m" in text and "\x1b" not in text
    assert lines[-1] == "held: 3; could not be checked: 3; wrong: 1"
    assert "runs/b: is not done" in text
    assert "not checked         nothing holds these fields of the record: command, x" in text
    assert "at least 0.1 for 1 of them, 0.651 for 10 of them" in text


def test_verbose_has_a_line_for_each_and_data_have_all():
    text = document_text(check_document(VALUE, verbose=True))
    assert "metrics: ppl        held: 46.95" in text and "metrics: nll" in text
    rows = table_csv(check_document(VALUE).data).splitlines()
    assert rows[0] == "run,part,what,result,found" and len(rows) == 1 + len(FINDINGS) + 2
