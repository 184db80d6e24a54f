"""Runs whose text is in part their calibration text."""

from pathlib import Path
from types import SimpleNamespace

from scoremode.results.comparison.comparable import is_held_out, not_held_out


def test_one_per_cent_is_held_out_and_more_is_not():
    assert is_held_out({"share": 0.01}) and not is_held_out({"share": 0.0101})


def test_runs_are_noted_by_folder():
    section = {"share": 0.5, "name": "c4.jsonl"}
    runs = [
        SimpleNamespace(folder=Path("a"), record={}),
        SimpleNamespace(folder=Path("b"), record={"calibration": section}),
        SimpleNamespace(folder=Path("c"), record={"calibration": section | {"share": 0.0}}),
    ]
    (note,) = not_held_out(runs)  # pyright: ignore[reportArgumentType]
    assert (
        note
        == "b is not held out: 50.00% of its targets stand in c4.jsonl, too, its calibration text"
    )
