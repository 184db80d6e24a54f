"""Specs as a command line makes them: of a whole command, or of some flags alone."""

from typing import TypeVar

from scoremode.spec.flag import Flags, Parser

__all__ = ["given"]

Spec = TypeVar("Spec", bound=Flags)


def given(flags: type[Spec], *words: str) -> Spec:
    parser = Parser(prog="scoremode x", add_help=False)
    flags.add_to(parser)
    return flags.parsed(vars(parser.parse_args(words)))
