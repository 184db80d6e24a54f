"""`scoremode kld`: how far a model's predictions are from its base's."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.arguments import Group, base_revision
from scoremode.cli.flags.devices import on_devices
from scoremode.cli.flags.gates import add_gates, exit_code_of, gates_of
from scoremode.cli.flags.mixing import add_mixing, swaps_in
from scoremode.cli.flags.parser import probability_of
from scoremode.cli.flags.run import add_run, measured, print_run, request_of
from scoremode.cli.flags.several import (
    add_several,
    is_sweep,
    print_foreseen,
    print_outcome,
    sweep_of,
    swept,
)
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.runs.request import Request, Result

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "kld",
        usage="scoremode kld MODEL … --reference BASE [flags]",
        help="KL divergence of a model from its base",
        description="Compares every prediction of a model with its base's: exact KL divergence both "
        "ways over the whole vocabulary, both perplexities and their ratio, all paired. Exit code 4: a "
        "gate was not met. Several models: the base runs once, each is compared with it, and all are "
        "ranked; the same command goes on where a killed one was, and runs what is new.",
    )
    add_run(
        parser,
        output=Path("runs"),
        output_help="where runs go, a folder each (default: runs)",
        add_first=_add_base,
        add_groups=partial(_add_groups, parser),
    )
    parser.set_defaults(run=on_devices(run), request_of=_request_of, is_shared=True)


def _add_base(first: Group) -> None:
    first.add_argument(
        "--reference",
        required=True,
        metavar="BASE",
        help="the base to compare with: what scoremode reference kept, a model (folder, .gguf file or "
        "hub id) to run beside, or a llama.cpp file of logits",
    )


def _add_groups(parser: argparse.ArgumentParser) -> None:
    add_gates(parser)
    add_several(parser)
    add_mixing(parser, with_base=True)
    further = parser.add_argument_group("comparison")
    further.add_argument(
        "--llama-cpp-block",
        action="store_true",
        help="print llama-perplexity's block of statistics as well; with --json it is in the record",
    )
    further.add_argument(
        "--reference-revision", metavar="REV", help="branch, tag or commit of a BASE on the hub"
    )
    further.add_argument(
        "--full",
        action="store_true",
        help="Jensen-Shannon divergence and top-k agreement, by a second pass over the logits",
    )
    further.add_argument(
        "--confident",
        type=probability_of,
        default=0.9,
        metavar="P",
        help="probability of its likeliest token above which the base is sure of it: the share of such "
        "targets where the model finds another one likeliest is told apart (default: 0.9)",
    )
    further.add_argument(
        "--noise-floor",
        nargs="?",
        const="auto",
        choices=("auto", "attention", "dtype", "engine"),
        help="how far the base is from itself when it runs again with other arithmetic: another "
        "attention backend or, where that changes nothing, another dtype (auto); or the other engine",
    )


def _request_of(args: argparse.Namespace, command: tuple[str, ...]) -> "Request":
    if args.llama_cpp_block and args.form == "csv":
        raise UsageError(
            "--llama-cpp-block: is another table than the one that --format csv prints"
        )
    if args.llama_cpp_block and args.shard is not None:
        raise UsageError(
            f"--llama-cpp-block: is of a whole run, and shard {args.shard} has no numbers: scoremode "
            "show prints it of the merged one"
        )
    return request_of(
        args,
        command,
        reference=args.reference,
        reference_revision=base_revision(args),
        full=args.full,
        noise_floor=args.noise_floor,
        confident=args.confident,
        swaps=swaps_in(args),
        gates=gates_of(args),
    )


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    if is_sweep(args):
        return _run_several(args, command)
    request = _request_of(args, command)
    result = measured(request, args)
    assert request.gates is not None
    if request.shard is not None:
        print_run(args, result.record, result.folder)
        return 0
    judged = request.gates.judge(result.record)
    shown: dict[str, Any] = result.record | {"gates": [gate.to_json() for gate in judged]}
    print_run(args, shown, result.folder)
    if args.llama_cpp_block and args.form != "json":
        _print_block(result, args.form, apart=not args.quiet)
    return exit_code_of(judged)


def _run_several(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    for flag, given in (("--keep-dense", args.keep_dense), ("--swap", args.swap)):
        if given:
            raise UsageError(f"{flag} {given[0]}: is of one MODEL, and several are given")
    pair = _request_of(args, command)
    request = sweep_of(args, [pair], command)
    if args.dry_run:
        return print_foreseen(args, request)
    return print_outcome(args, swept(args, request), pair.gates)


def _print_block(result: "Result", form: str, *, apart: bool) -> None:
    """`apart`: behind a table."""
    if result.record.get("llama_cpp") is None:
        print(f"scoremode: no llama.cpp block: {result.record['llama_cpp_note']}", file=sys.stderr)
        return
    from scoremode.report.rendering import preformatted
    from scoremode.results.folders.finished import read_verified
    from scoremode.results.statistics.llama_cpp import block_of

    block = block_of(read_verified(result.folder, result.record)[0])
    assert block is not None
    text = preformatted(block.text()) if form == "markdown" else block.text()
    print("\n" * apart + text)
