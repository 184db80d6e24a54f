"""The flag of a run that scores a share of the passes, apart from the others."""

import argparse

from scoremode.errors import UsageError
from scoremode.text.shard import Shard

__all__ = ["add_sharding", "shard_of"]


def add_sharding(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a share of a run",
        "for machines that don't know of each other; scoremode merge makes the run",
    )
    group.add_argument(
        "--shard",
        type=_shard,
        metavar="i/N",
        help="score the i-th of N shares of the run's passes, with i from 1 to N: the same scores as "
        "one process's, and no metrics till all N are merged (ppl and kld of one model)",
    )


def shard_of(args: argparse.Namespace) -> Shard | None:
    """The shard that is asked for, None for a whole run."""
    return None if args.shard is None else Shard.parsed(args.shard)


def _shard(text: str) -> str:
    try:
        return str(Shard.parsed(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--shard ")) from None
