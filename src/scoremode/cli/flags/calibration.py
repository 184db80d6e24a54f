"""Flags of the text that a model was calibrated on, which is looked for in the scored one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.parser import Once, flag_of, names_file
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.text.calibration import Calibration

__all__ = ["add_calibration", "calibration_of"]

# Flags that mean nothing without --calibration.
_ONLY = ("calibration_config", "calibration_revision", "calibration_split", "calibration_field")


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
    if args.calibration is None:
        for name in _ONLY:
            if getattr(args, name) is not None:
                raise UsageError(f"{flag_of(name)}: is for --calibration, and none is given")
        return None
    if not args.calibration:
        raise UsageError("--calibration: the name is empty")
    from scoremode.text.calibration import calibration_of_file, calibration_of_hub
    from scoremode.text.corpus import PACKED, ROWS

    path, field = Path(args.calibration), args.calibration_field or "text"
    if names_file(args.calibration):
        has_rows = path.name.lower().endswith((*ROWS, *PACKED))
        for name in _ONLY[:-1] if has_rows else _ONLY:
            if (value := getattr(args, name)) is not None:
                what = "a file" if name in _ONLY[:-1] else "no data set"
                raise UsageError(f"{flag_of(name)} {value}: {path} is {what}, and has none")
        return calibration_of_file(path, field)
    args.screen.reads("text", f"data set {args.calibration}", from_hub=True)
    return calibration_of_hub(
        args.calibration,
        args.calibration_config,
        split=args.calibration_split or "train",
        revision=args.calibration_revision,
        text_field=field,
    )
