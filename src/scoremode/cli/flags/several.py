"""Several models on one command line, and how a sweep of them is run and shown."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.arguments import model_of, named_model
from scoremode.cli.flags.forms import print_result, rendered
from scoremode.errors import GateNotMet, ScoremodeError, UsageError, escaped, line_of
from scoremode.lib.json import json_text

if TYPE_CHECKING:
    from scoremode.results.gates import Gates
    from scoremode.runs.request import Request
    from scoremode.runs.sweep.manifest import Ended, Outcome, SweepRequest

__all__ = ["add_several", "is_sweep", "print_foreseen", "print_outcome", "sweep_of", "swept"]

# What a word must hold to be a pattern of models.
_MANY = "*?["


def add_several(parser: argparse.ArgumentParser) -> None:
    """More than one MODEL, and what a sweep of them alone takes."""
    parser.set_defaults(further_models=())
    group = parser.add_argument_group(
        "several models",
        "folders, hub ids, .gguf files, patterns such as 'org/repo:*.gguf', finished runs' folders",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would run, what is done, from where, how many bytes and how long; run nothing",
    )


def is_sweep(args: argparse.Namespace) -> bool:
    """Tells whether more is asked for than one model's run."""
    if args.further_models or args.dry_run:
        return True
    model = named_model(args)
    if model is None or not any(c in model for c in _MANY):
        return False
    return not os.path.exists(model)  # noqa: PTH110  Path.exists raises for a name too long


def sweep_of(
    args: argparse.Namespace, pairs: "Sequence[Request]", command: tuple[str, ...]
) -> "SweepRequest":
    """The sweep of the models that the flags name. Raises UsageError."""
    from scoremode.runs.sweep.manifest import SweepRequest

    if getattr(args, "llama_cpp_block", False):
        raise UsageError(
            "--llama-cpp-block: is for one MODEL; scoremode show prints it of each run"
        )
    if args.shard is not None:
        raise UsageError(
            f"--shard {args.shard}: is of one model's run: give one MODEL, or each machine models of "
            "its own"
        )
    if args.ranks is not None:
        raise UsageError("--devices: several models take turns in one process: give one MODEL")
    models = (model_of(args), *args.further_models)
    return SweepRequest(models, tuple(pairs), args.output_path, command)


def swept(args: argparse.Namespace, request: "SweepRequest") -> "Outcome":
    """`run_sweep`, with progress and a line for every run that ends on stderr."""
    from scoremode.runs.sweep.sweep import run_sweep

    outcome = run_sweep(
        request,
        tell=partial(_tell, args),
        progress=args.screen.progress,
        notify=args.screen.line,
        stage=args.screen.stage,
    )
    args.screen.clear()
    return outcome


def _tell(args: argparse.Namespace, ended: "Ended") -> None:
    entry = ended.entry
    name = entry["model"] + f" ({ended.under})" * bool(ended.under)
    if entry["status"] == "left out":
        line = f"{name}: left out: is a finished run of another text or protocol"
    elif ended.result is None:
        assert entry["error"] is not None
        # An error of a folder begins with the folder's name, which is said already.
        line = f"{name}: error: {entry['error'].removeprefix(entry['model'] + ': ')}"
        if args.quiet:
            print(f"scoremode: {escaped(line)}", file=sys.stderr)
    else:
        line = f"{name}: {_numbers(ended.result.record)}"
    args.screen.line(f"{line} ({ended.number} of {ended.count})")


def _numbers(record: dict[str, Any]) -> str:
    kld, ratio = record["metrics"]["kld"], record["metrics"]["ppl_ratio"]
    spread = f" ± {(kld['ci95'][1] - kld['ci95'][0]) / 2:.2g}" if kld["ci95"] else ""
    return f"KLD {kld['value']:.4g}{spread} nats, PPL × {ratio['value']:.5f}"


def print_outcome(args: argparse.Namespace, outcome: "Outcome", gates: "Gates | None") -> int:
    """Prints the ranking of each text and protocol, in the form that was asked for; returns the exit
    code: 1 where an entry failed, 4 where one missed a gate."""
    from scoremode.results.comparison.ranking import ranking

    found: list[dict[str, Any] | None] = []
    failed = outcome.failed
    for pair in range(len(outcome.manifest["pairs"])):
        # A run may have been given beside its model.
        folders = {
            result.folder.resolve(): result.folder
            for entry, result in zip(outcome.manifest["entries"], outcome.results, strict=True)
            if entry["pair"] == pair and result is not None
        }
        try:
            found.append(ranking([*folders.values()]) if folders else None)
        except ScoremodeError as error:
            failed += 1
            found.append(None)
            print(f"scoremode: {line_of(error)}", file=sys.stderr)
    args.screen.clear()
    if args.form == "json":
        value = {"sweep": outcome.manifest, "comparisons": found}
        # ASCII: a model's name may hold what does something to a terminal.
        sys.stdout.write(json_text(value, ascii_only=True).rstrip("\n") + "\n")
    elif not args.quiet:
        _print_tables([value for value in found if value], args.form)
    missed = _missed(outcome, gates)
    if failed:
        words = f"{failed} of {len(outcome.results)} runs failed, as said above"
        print(f"scoremode: error: {words}; {outcome.folder} has the others", file=sys.stderr)
        return ScoremodeError.exit_code
    return GateNotMet.exit_code if missed else 0


def _print_tables(found: "Sequence[dict[str, Any]]", form: str) -> None:
    """Prints the rankings one below the other; as CSV in one table."""
    from scoremode.report.compare import compare_document, rankings_table
    from scoremode.report.rendering import table_csv

    if form == "csv" and len(found) > 1:
        sys.stdout.write(table_csv(rankings_table(found)))
    else:
        sys.stdout.write("\n".join(rendered(compare_document(value), form) for value in found))


def _missed(outcome: "Outcome", gates: "Gates | None") -> bool:
    missed, pairs = False, outcome.manifest["pairs"]
    for entry, result in zip(outcome.manifest["entries"], outcome.results, strict=True):
        own = pairs[entry["pair"]]
        under = f" ({own['corpus']}, {own['protocol']})" * (len(pairs) > 1)
        for gate in gates.judge(result.record) if gates and result else ():
            if not gate.met:
                missed = True
                print(f"scoremode: {escaped(entry['model'] + under)}: {gate}", file=sys.stderr)
    return missed


def print_foreseen(args: argparse.Namespace, request: "SweepRequest") -> int:
    """Prints what a sweep would do."""
    from scoremode.report.runs import foreseen_document
    from scoremode.runs.sweep.dry_run import foresee

    args.screen.stage("looking at what is there")
    value = foresee(request)
    print_result(args, value, foreseen_document)
    return 0
