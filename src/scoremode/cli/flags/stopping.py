"""The flags of a run that ends when a number is known well enough."""

import argparse
from typing import TYPE_CHECKING, Any

from scoremode.errors import ProtocolError, UsageError

if TYPE_CHECKING:
    from scoremode.cli.flags.arguments import Group

__all__ = ["add_seed", "add_stopping", "row_seed", "stopping_of"]


def add_stopping(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "an early end", "windows are drawn at random, so that those done stand for all"
    )
    group.add_argument(
        "--stop-when",
        type=_rule,
        metavar="RULE",
        help="end when the 95 %% interval of what all windows would give is this narrow: "
        "'ppl ±0.5 %%', 'ppl ±0.05', 'kld ±2 %%', 'kld ±0.001' (+- stands for ±)",
    )
    add_seed(group, "; with --stop-when of the order of its windows (default there: 0)")


def add_seed(group: "argparse.ArgumentParser | Group", more: str = "") -> None:
    """`--seed`, for the rows of `--num-samples`; `more` of its help."""
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help=f"seed that draws the rows of --num-samples, in place of the first ones{more}",
    )


def row_seed(args: argparse.Namespace) -> int | None:
    """The seed that draws the rows of a text, None where its first ones are taken: a run that a rule
    may stop draws windows by it. Raises UsageError."""
    seed = args.seed
    if seed is None or getattr(args, "stop_when", None) is not None:
        return None
    if args.num_samples is None:
        of = " or --stop-when" if hasattr(args, "stop_when") else ""
        raise UsageError(
            f"--seed {seed}: draws what is asked for by --num-samples{of}: give it, too"
        )
    if seed < 0:
        raise UsageError(f"--seed {seed}: must be at least 0")
    return seed


def stopping_of(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a protocol that the flags set, where a command has them. Raises UsageError."""
    if not hasattr(args, "stop_when"):
        return {}
    rule, seed = args.stop_when, args.seed
    if rule is None:
        row_seed(args)
        return {}
    if seed is not None and seed < 0:
        raise UsageError(f"--seed {seed}: must be at least 0")
    return {"stop_when": rule, "seed": seed or 0}


def _rule(text: str) -> str:
    from scoremode.text.stopping import stop_rule

    try:
        return str(stop_rule(text))
    except ProtocolError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
