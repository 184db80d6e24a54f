"""`scoremode compare`: finished runs of one plan, ranked, each tested against the next."""

import argparse
import sys
from pathlib import Path

from scoremode.cli.flags.forms import add_form, rendered
from scoremode.errors import UsageError
from scoremode.lib.json import json_text

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        help="finished runs, ranked and tested against each other",
        description="Ranks finished runs of one plan, best first, and tests each against the next: "
        "paired, by a bootstrap over blocks of the text. Reads records and scores only. Runs of "
        "other texts, protocols, token ids or softmax widths are refused.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or one that holds runs"
    )
    parser.add_argument(
        "--by",
        choices=("kld", "ppl"),
        help="metric to rank by (default: KLD where all have one against the same reference)",
    )
    parser.add_argument(
        "--groups",
        action="store_true",
        help="show each group's runs alone; as CSV a line for each run in each group",
    )
    add_form(parser, "all of it")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the ranking to FILE, not to stdout"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.report.compare import compare_document
    from scoremode.report.groups import compared_groups
    from scoremode.results.comparison.ranking import ranking
    from scoremode.results.folders.paths import run_folders, write_output

    runs = run_folders(args.runs, args.screen.line)
    args.screen.stage(f"comparing {len(runs)} runs" if runs[1:] else "reading the run")
    value = ranking(runs, args.by)
    args.screen.clear()
    if args.form == "json":
        # ASCII: a model's name may hold what does something to a terminal.
        text = json_text({**value, "command": list(command)}, ascii_only=True)
    elif args.groups:
        if not value["groups"]:
            raise UsageError("--groups: none of the runs was measured with --group-by")
        text = rendered(compared_groups(value["groups"]), args.form)
    else:
        text = rendered(compare_document(value), args.form)
    if args.output is not None:
        write_output(args.output, text)
    else:
        sys.stdout.write(text)
    return 0
