"""`scoremode sweep`: many models, texts and protocols against one base, as a file describes them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.forms import add_form
from scoremode.cli.flags.several import print_foreseen, print_outcome, sweep_of, swept
from scoremode.cli.flags.sweep_file import read_sweep_file

if TYPE_CHECKING:
    from scoremode.runs.request import Request

__all__ = ["add_parser", "requests_of"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "sweep",
        help="many models, texts and protocols against one base, from a file",
        description="Measures every model of a TOML file under each of its texts and protocols "
        "(docs/sweep.md): the base once, each model's weights loaded once, and all ranked. The same "
        "command goes on where a killed one was, and runs what is new. Exit code 1: a run failed, all "
        "others are there; 4: a gate was not met.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the sweep, as TOML")
    parser.add_argument(
        "-o", "--output-path", type=Path, metavar="DIR",
        help="where all goes (default: what FILE says, inside its own folder)",
    )  # fmt: skip
    consent = parser.add_argument_group(
        "consent",
        "what FILE can't say, since it may come from somebody else; it holds for all models",
    )
    consent.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that the models bring along"
    )
    consent.add_argument(
        "--engine-arg", action="append", default=[], metavar="KEY=VALUE",
        help="a keyword of vllm.LLM, as of scoremode kld; some of them import code",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would run, what is done, from where, how many bytes and how long; run nothing",
    )
    add_form(parser, "the manifest and the rankings")
    parser.add_argument("--quiet", action="store_true", help="print neither progress nor a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.cli.main import command_parser

    consent = [f"--engine-arg={each}" for each in args.engine_arg]
    consent += ["--trust-remote-code"] * args.trust_remote_code
    lines = read_sweep_file(args.file, command_parser("kld"), consent, args.output_path)
    parsed, pairs = requests_of(lines, args, command)
    first = parsed[0]
    request = sweep_of(first, pairs, command)
    if args.dry_run:
        return print_foreseen(args, request)
    return print_outcome(args, swept(args, request), pairs[0].gates)


def requests_of(
    lines: list[list[str]], args: argparse.Namespace, command: tuple[str, ...] | None
) -> "tuple[list[argparse.Namespace], list[Request]]":
    """The flags of each command line, and the request that they make; `args` have screen and clock.

    `command`: for the records; None for the line itself.
    """
    from scoremode.cli.main import parsed_command

    parsed: list[Any] = []
    for line in lines:
        flags = parsed_command(line)
        flags.screen, flags.clock, flags.ranks = args.screen, args.clock, None
        parsed.append(flags)
    requests = [
        flags.request_of(flags, command or ("scoremode", *line))
        for line, flags in zip(lines, parsed, strict=True)
    ]
    return parsed, requests
