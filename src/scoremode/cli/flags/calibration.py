"""Flags of the text that a model was calibrated on, which is looked for in the scored one."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.parser import Once, names_file
from scoremode.cli.flags.sources import refuse_unused
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.text.calibration import Calibration

__all__ = ["CALIBRATIONS", "add_calibration", "calibration_of"]

_OF_HUB = frozenset({"calibration_config", "calibration_revision", "calibration_split"})
# Flags by what --calibration names: a text, rows of a file, a data set of the hub, or nothing.
CALIBRATIONS: Mapping[str, frozenset[str]] = {
    "no calibration text": frozenset(),
    "--calibration TEXT": frozenset(),
    "--calibration ROWS": frozenset({"calibration_field"}),
    "--calibration of the hub": _OF_HUB | {"calibration_field"},
}


def add_calibration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("held out?")
    group.add_argument(
        "--calibration",
        action=Once,
        metavar="TEXT",
        help="what the model was calibrated on: a text file, texts or chats in .jsonl or .parquet, or "
        "a data set of the hub; how much of the scored text is in it is noted",
    )
    group.add_argument(
        "--calibration-config", metavar="NAME", help="configuration of that hub data set"
    )
    group.add_argument(
        "--calibration-revision", metavar="REV", help="branch, tag or commit of it (default: main)"
    )
    group.add_argument("--calibration-split", metavar="NAME", help="split of it (default: train)")
    group.add_argument(
        "--calibration-field",
        metavar="NAME",
        help="column or field of its rows that holds the text, where they are no chats (default: text)",
    )


def calibration_of(args: argparse.Namespace) -> "Calibration | None":
    """The calibration text that the flags name, None where they name none.

    Raises UsageError for a flag that has no meaning without it, CorpusError.
    """
    source = _source(args.calibration)
    refuse_unused(
        args, source, CALIBRATIONS, args.calibration and f"--calibration {args.calibration}"
    )
    if args.calibration is None:
        return None
    from scoremode.text.calibration import calibration_of_file, calibration_of_hub

    field = args.calibration_field or "text"
    if source != "--calibration of the hub":
        return calibration_of_file(Path(args.calibration), field)
    args.screen.reads("text", f"data set {args.calibration}", from_hub=True)
    return calibration_of_hub(
        args.calibration,
        args.calibration_config,
        split=args.calibration_split or "train",
        revision=args.calibration_revision,
        text_field=field,
    )


def _source(name: str | None) -> str:
    """The key in CALIBRATIONS of what is named. Raises UsageError."""
    if name is None:
        return "no calibration text"
    if not name:
        raise UsageError("--calibration: the name is empty")
    if not names_file(name):
        return "--calibration of the hub"
    from scoremode.text.corpus import PACKED, ROWS

    has_rows = Path(name).name.lower().endswith((*ROWS, *PACKED))
    return "--calibration ROWS" if has_rows else "--calibration TEXT"
