"""How much of a scored text is in the text that the model was calibrated on, in words."""

from collections.abc import Mapping
from typing import Any

from scoremode.report.layout import counted, printable
from scoremode.results.comparison.comparable import is_held_out

__all__ = ["calibration_rows"]


def calibration_rows(record: Mapping[str, Any], *, held_out: bool = False) -> list[tuple[str, str]]:
    """A row on a text that is not held out, or on one that is where `held_out` asks for that."""
    found = record.get("calibration")
    if found is None or is_held_out(found) != held_out:
        return []
    return [("held out" if held_out else "NOT HELD OUT", _words(found))]


def _words(found: Mapping[str, Any]) -> str:
    """Such as `3.20% of the targets stand in c4.jsonl, too, the calibration text of 9,926 tokens …`."""
    share = f"{found['share']:.2%}" if found["targets"] else "none"
    name, tokens = printable(found["name"]), counted(found["tokens"], "token")
    seen = sorted(found.get("labels", {}).items(), key=lambda item: (-item[1], item[0]))
    # Of several groups the one that has most.
    most = f"; of {printable(seen[0][0])} {seen[0][1]:.2%}" if len(seen) > 1 else ""
    return (
        f"{share} of the targets stand in {name}, too, the calibration text of {tokens}, among "
        f"{found['ngram']} tokens in a row{most}"
    )
