"""`scoremode show`: a finished run's table again, its gates, its worst tokens."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.forms import add_form, print_result
from scoremode.cli.flags.gates import add_gates, exit_code_of, gates_of
from scoremode.cli.flags.parser import probability_of
from scoremode.cli.flags.run import print_run
from scoremode.errors import ScoremodeError, UsageError

if TYPE_CHECKING:
    from scoremode.results.folders.finished import FinishedRun
    from scoremode.text.token_class import TokenTable

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "show",
        help="a finished run's table again",
        description="Prints the table of a finished run, and holds it against gates. Reads its record "
        "and scores only.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--worst",
        type=_count,
        metavar="N",
        help="show the N targets of largest KLD, with their text",
    )
    parser.add_argument(
        "--groups",
        action="store_true",
        help="show the groups of --group-by and the places in assistants' turns with all their "
        "metrics; as CSV a line for each group of every kind",
    )
    parser.add_argument(
        "--confident",
        type=probability_of,
        metavar="P",
        help="count flips where the base gave its likeliest token more than P (default: the record's)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the table in full")
    add_form(parser, "the record")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    add_gates(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.results.folders.finished import open_run, read_verified
    from scoremode.results.record.sections import remade

    gates, found = gates_of(args), open_run(args.folder)
    for asked, flag in (
        (bool(gates), "a gate on KLD, ratio or top-1"),
        (args.worst, "--worst"),
        (args.confident is not None, "--confident"),
    ):
        if asked and found.kld is None:
            raise UsageError(f"{args.folder}: has no base, which {flag} needs")
    judged = gates.judge(found.record) if gates else []
    shown: dict[str, Any] = dict(found.record)
    if args.confident is not None:
        shown |= remade(found.record, *read_verified(args.folder, found.record), args.confident)
    if args.groups:
        return _print_groups(args, shown)
    if judged:
        shown["gates"] = [gate.to_json() for gate in judged]
    if args.worst:
        shown["worst"] = _worst(args, found)
    print_run(args, shown, args.folder, worst=bool(args.worst))
    return exit_code_of(judged)


def _print_groups(args: argparse.Namespace, record: dict[str, Any]) -> int:
    from scoremode.report.groups import groups_document

    if args.worst:
        raise UsageError("--groups and --worst: each is a table of its own")
    document = groups_document(record)
    if args.form != "csv" and not document.parts:
        raise UsageError(
            f"{args.folder}: was measured without --group-by, and not on assistants' turns: it has no "
            "groups but those of show -v"
        )
    print_result(args, record, lambda _: document)
    return 0


def _worst(args: argparse.Namespace, found: "FinishedRun") -> list[dict[str, Any]]:
    """The run's worst targets: the record's where it has as many, others from the scores."""
    kept = found.record.get("worst") or []
    # A list shorter than it might be is whole.
    if args.worst <= len(kept) or len(kept) < 10:
        return kept[: args.worst]
    from scoremode.results.folders.finished import read_verified
    from scoremode.results.statistics.divergence import stream_of, worst_tokens

    scores, _ = read_verified(args.folder, found.record)
    assert scores.against is not None
    table = _token_table(args, found)
    return worst_tokens(
        scores, scores.against, stream=stream_of(scores), table=table, count=args.worst
    )


def _token_table(args: argparse.Namespace, found: "FinishedRun") -> "TokenTable | None":
    """The run's tokenizer's table where that still lies where it did, None with a notice where not."""
    from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
    from scoremode.text.token_class import token_table

    source = str(found.at("tokenizer.source"))
    try:
        # A name on the hub is not asked for: nothing here needs a network.
        if not Path(source).exists():
            raise UsageError(f"{source}: is not there")
        tokenizer = checkpoint_tokenizer(source)
        if tokenizer.sha256 != found.at("tokenizer.sha256"):
            raise UsageError(f"{source}: is another tokenizer now")
        return token_table(tokenizer)
    except ScoremodeError as error:
        args.screen.line(f"token ids and no text: {error}")
        return None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of targets, 1 or more")
    return int(text)
