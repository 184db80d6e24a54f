"""`scoremode merge`: the shards of a run made the one run that they are of."""

import argparse
from pathlib import Path

from scoremode.cli.flags.forms import add_form
from scoremode.cli.flags.gates import add_gates, exit_code_of, gates_of
from scoremode.cli.flags.run import print_run

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "merge",
        usage="scoremode merge RUN … -o DIR [flags]",
        help="make one run of the shards of --shard i/N",
        description="Makes the one run of all shards that scoremode ppl or kld scored with --shard: "
        "the scores and metrics of one process's run, to the bit. Shards that are missing, there twice "
        "or of another run are refused. Reads the shards only: no model, no text. Exit code 4: a gate "
        "was not met.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a shard's folder, or one that holds shards",
    )
    parser.add_argument(
        "-o",
        "--output-path",
        type=Path,
        metavar="DIR",
        required=True,
        help="the merged run's own folder, which must not exist yet",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the table in full")
    add_form(parser, "the record")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    add_gates(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.results.shards.merge import merge

    gates = gates_of(args)
    args.screen.stage("merging")
    record = merge(
        args.runs, args.output_path, gates=gates, command=command, notify=args.screen.line
    )
    args.screen.clear()
    print_run(args, record, args.output_path)
    return exit_code_of(gates.judge(record) if gates else [])
