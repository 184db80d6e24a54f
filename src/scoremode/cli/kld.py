"""`scoremode kld`: how far a model's predictions are from its base's."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.devices import on_devices
from scoremode.cli.flags.gates import add_gates, exit_code_of, gates_of
from scoremode.cli.flags.run import add_run, measured, request_of
from scoremode.json_text import print_json

if TYPE_CHECKING:
    from scoremode.runs.measure import Request, Result

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "kld",
        help="KL divergence of a model from its base",
        description="Compares every prediction of a model with its base's: exact KL divergence both "
        "ways over the whole vocabulary, both perplexities and their ratio, all paired. Exit code 4: a "
        "gate was not met.",
    )
    add_run(parser, output=Path("runs"), output_help="where runs go, a folder each (default: runs)")
    base = parser.add_argument_group("base")
    base.add_argument(
        "--reference",
        required=True,
        metavar="BASE",
        help="what to compare with: a reference that scoremode reference kept, a model (folder or hub "
        "id) to run beside, or a llama.cpp file of logits",
    )
    base.add_argument("--reference-revision", help="branch, tag or commit of a hub model")
    base.add_argument(
        "--full",
        action="store_true",
        help="Jensen-Shannon divergence and top-k agreement as well, by a second pass over the logits",
    )
    base.add_argument(
        "--noise-floor",
        nargs="?",
        const="auto",
        choices=("auto", "attention", "dtype", "engine"),
        help="run the base again with other arithmetic, and say how far it is from itself: another "
        "attention backend or, where that changes nothing, another dtype (auto); or the other engine",
    )
    parser.add_argument(
        "--llama-cpp-block",
        action="store_true",
        help="print llama-perplexity's block of statistics as well; with --json it is in the record",
    )
    add_gates(parser)
    parser.set_defaults(run=on_devices(run), request_of=_request_of, is_shared=True)


def _request_of(args: argparse.Namespace, command: tuple[str, ...]) -> "Request":
    gates = gates_of(args)
    return request_of(
        args,
        command,
        reference=args.reference,
        reference_revision=args.reference_revision,
        full=args.full,
        noise_floor=args.noise_floor,
        gates=gates,
    )


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    request = _request_of(args, command)
    result = measured(request, args)
    assert request.gates is not None
    judged = request.gates.judge(result.record)
    shown: dict[str, Any] = result.record | {"gates": [gate.to_json() for gate in judged]}
    if args.json:
        print_json(shown)
    elif not args.quiet:
        from scoremode.report.divergence import kld_table

        print(kld_table(shown, result.folder, verbose=args.verbose))
    if args.llama_cpp_block and not args.json:
        _print_block(result, apart=not args.quiet)
    return exit_code_of(judged)


def _print_block(result: "Result", *, apart: bool) -> None:
    """`apart`: behind a table."""
    if result.record.get("llama_cpp") is None:
        print(f"scoremode: no llama.cpp block: {result.record['llama_cpp_note']}", file=sys.stderr)
        return
    from scoremode.llama_cpp.block import block_of
    from scoremode.results.folders.finished import read_verified

    block = block_of(read_verified(result.folder, result.record)[0])
    assert block is not None
    print("\n" * apart + block.text())
