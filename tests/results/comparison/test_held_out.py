"""Runs whose text is in part their calibration text."""

from pathlib import Path
from types import SimpleNamespace

from scoremode.results.comparison.comparable import not_held_out


def test_runs_are_noted_by_folder():
    def run(folder, share):
        section = share and SimpleNamespace(share=share, name="c4.jsonl")
        return SimpleNamespace(folder=Path(folder), record=SimpleNamespace(calibration=section))

    runs = [run("a", None), run("b", 0.0101), run("c", 0.01)]
    (note,) = not_held_out(runs)  # pyright: ignore[reportArgumentType]
    assert (
        note
        == "b is not held out: 1.01% of its targets stand in c4.jsonl, too, its calibration text"
    )
