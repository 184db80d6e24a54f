"""Runs whose scored text is, in part, the text that the model was calibrated on."""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.results.folders.finished import FinishedRun

__all__ = ["is_held_out", "not_held_out"]

# The share of targets from which on that is said wherever the result is.
_SEEN = 0.01


def is_held_out(calibration: Mapping[str, Any]) -> bool:
    """Tells, by a record's section `calibration`, whether that text has at most 1 % of the targets."""
    return calibration["share"] <= _SEEN


def not_held_out(runs: Sequence[FinishedRun]) -> list[str]:
    """A note on each run whose text is not held out, by what it was told of its calibration."""
    found = [(run.folder, run.record.get("calibration")) for run in runs]
    return [
        f"{folder} is not held out: {section['share']:.2%} of its targets stand in {section['name']}, "
        "too, its calibration text"
        for folder, section in found
        if section is not None and not is_held_out(section)
    ]
