"""The row on a text that is, or isn't, held out."""

from scoremode.report.calibration import calibration_rows

SECTION = {"name": "c4<b>.jsonl", "tokens": 1234, "ngram": 13, "targets": 5, "share": 0.5}


def test_a_text_that_is_not_held_out_has_a_row():
    (row,) = calibration_rows({"calibration": SECTION})
    assert row[0] == "NOT HELD OUT" and row[1].startswith("50.00% of the targets stand in c4")
    assert (
        "1,234 tokens" in row[1] and calibration_rows({"calibration": SECTION}, held_out=True) == []
    )


def test_the_worst_group_is_named():
    labels = {"a": 0.1, "b|c": 0.9}
    ((_, words),) = calibration_rows({"calibration": SECTION | {"labels": labels}})
    assert words.endswith("; of b|c 90.00%")


def test_one_that_is_held_out_has_its_row_where_all_is_said():
    section = SECTION | {"targets": 0, "share": 0.0}
    assert calibration_rows({"calibration": section}) == [] == calibration_rows({}, held_out=True)
    ((name, words),) = calibration_rows({"calibration": section}, held_out=True)
    assert name == "held out" and words.startswith("none of the targets stand in")
