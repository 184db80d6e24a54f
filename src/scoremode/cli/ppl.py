"""`scoremode ppl`: the perplexity of a model, with its record."""

import argparse
from pathlib import Path

from scoremode.cli.flags.devices import on_devices
from scoremode.cli.flags.run import add_run, measured, print_run, request_of

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ppl",
        usage="scoremode ppl MODEL [flags]",
        help="perplexity of a model",
        description="Measures the exact perplexity of a model's quantized weights under a protocol.",
    )
    add_run(parser, output=Path("runs"), output_help="where runs go, a folder each (default: runs)")
    parser.set_defaults(run=on_devices(run), request_of=request_of, is_shared=True)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    result = measured(request_of(args, command), args)
    print_run(args, result.record, result.folder)
    return 0
