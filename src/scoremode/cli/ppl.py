"""`scoremode ppl`: the perplexity of a model, with its record."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.devices import on_devices
from scoremode.cli.flags.mixing import add_mixing, swaps_in
from scoremode.cli.flags.run import add_run, measured, print_run, request_of

if TYPE_CHECKING:
    from scoremode.runs.request import Request

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ppl",
        usage="scoremode ppl MODEL [flags]",
        help="perplexity of a model",
        description="Measures the exact perplexity of a model's quantized weights under a protocol.",
    )
    add_run(
        parser,
        output=Path("runs"),
        output_help="where runs go, a folder each (default: runs)",
        add_groups=partial(add_mixing, parser, with_base=False),
    )
    parser.set_defaults(run=on_devices(run), request_of=_request_of, is_shared=True)


def _request_of(args: argparse.Namespace, command: tuple[str, ...]) -> "Request":
    return request_of(args, command, swaps=swaps_in(args))


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    result = measured(_request_of(args, command), args)
    print_run(args, result.record, result.folder)
    return 0
