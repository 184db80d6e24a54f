"""`scoremode check`: an audit of published runs, from their scores, their text and their files."""

import argparse
from functools import partial
from pathlib import Path

from scoremode.cli.flags.forms import add_form, print_result
from scoremode.cli.flags.parser import check_least
from scoremode.errors import InvalidMeasurement

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "check",
        help="audit a published run: every number, hash and token id that can be made again",
        description="Makes every number of a run again from its scores, and every hash of what can be "
        "reached: the text, the tokenizer, the model's files, the base. Says what held, what could not "
        "be checked and why, and everything that is wrong. Exit code 0: all that could be checked "
        "holds; 3: something is wrong.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a folder of runs"
    )
    again = parser.add_argument_group("second run")
    again.add_argument(
        "--against",
        metavar="MODEL",
        help="score a share of the windows once more, with MODEL and the record's own options, and "
        "compare target by target",
    )
    again.add_argument(
        "--share",
        type=float,
        metavar="S",
        help="share of the windows, drawn as whole micro-batches (default: 0.1)",
    )
    again.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="draw the windows that an earlier check drew (default: a seed from the system, printed)",
    )
    again.add_argument(
        "--device", metavar="D", help="cpu, cuda or cuda:1 (default: the record's kind, else cpu)"
    )
    again.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that the model brings along"
    )
    places = parser.add_argument_group(
        "places", "where things lie on this machine; by default where the record says"
    )
    places.add_argument(
        "--model", metavar="PATH", help="the model's folder or .gguf file (default: --against's)"
    )
    places.add_argument(
        "--tokenizer", metavar="PATH", help="folder, .gguf file or tokenizer.json of the tokenizer"
    )
    places.add_argument(
        "--reference", metavar="PATH", help="the base: its folder, .gguf file or file of logits"
    )
    places.add_argument(
        "-f",
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="the text, or the data set's file; given again as often as in the run",
    )
    places.add_argument(
        "--fetch",
        action="store_true",
        help="get from the hub what the run took from there: data set, model, base",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for all that held")
    add_form(parser, "all findings")
    parser.add_argument("--quiet", action="store_true", help="print neither progress nor findings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    check_least(0, args, "seed")
    from scoremode.report.checks import check_document
    from scoremode.runs.check.check import check, rerun_of
    from scoremode.runs.check.sources import Sources

    rerun = rerun_of(args.against, args.share, args.seed, args.device, args.trust_remote_code)
    sources = Sources(
        args.model, args.tokenizer, args.reference, tuple(args.file), fetch=args.fetch
    )
    screen = args.screen
    value = check(
        args.runs, sources, rerun, progress=screen.progress, notify=screen.line, tell=screen.stage
    )
    result = {**value, "command": list(command)}
    print_result(args, result, partial(check_document, verbose=args.verbose))
    return InvalidMeasurement.exit_code if value["counts"]["wrong"] else 0
