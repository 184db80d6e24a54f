"""Flags of a mixture: modules that are taken from another checkpoint."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scoremode.runs.request import Swap

__all__ = ["add_mixing", "swaps_in"]


def add_mixing(parser: argparse.ArgumentParser, *, with_base: bool) -> None:
    group = parser.add_argument_group(
        "mixture",
        "Modules of another checkpoint in place of MODEL's; none is written. A PATTERN is a module's "
        "name or a glob of one that may begin behind any dot, with all within it (layers.0, "
        "'layers.*.mlp'), or a regular expression from the name's start (re:.*down_proj).",
    )
    if with_base:
        group.add_argument(
            "--keep-dense",
            action="append",
            metavar="PATTERN",
            help="modules that stay as the base has them; may be given several times",
        )
    group.add_argument(
        "--swap",
        action="append",
        metavar="PATTERN=OTHER",
        help="modules to take from OTHER, a checkpoint of the same base; may be given several times",
    )


def swaps_in(args: argparse.Namespace) -> "tuple[Swap, ...]":
    """The swaps that the flags ask for. Raises UsageError."""
    keep_dense = getattr(args, "keep_dense", None) or []
    if not (keep_dense or args.swap):
        return ()
    from scoremode.runs.models import swaps_of

    reference = getattr(args, "reference", None)
    revision = getattr(args, "reference_revision", None)
    return swaps_of(keep_dense, args.swap or [], reference, revision)
