"""The flags of a run that ends when a number is known well enough."""

import argparse
from typing import Any

from scoremode.errors import ProtocolError, UsageError

__all__ = ["add_stopping", "stopping_of"]


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
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the order in which --stop-when draws windows (default: 0)",
    )


def stopping_of(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a protocol that the flags set, where a command has them. Raises UsageError."""
    if not hasattr(args, "stop_when"):
        return {}
    rule, seed = args.stop_when, args.seed
    if rule is None:
        if seed is not None:
            raise UsageError(
                f"--seed {seed}: is of the windows that --stop-when draws, and needs it"
            )
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
