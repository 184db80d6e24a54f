"""`scoremode card`: what an author puts into a model card, and the hub's metadata."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.reproduction import joined, reproduction
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.report.card.content import Group
    from scoremode.results.folders.finished import FinishedRun

__all__ = ["add_parser", "card"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "card",
        help="Markdown and the hub's metadata for a model card",
        description="Prints the block of Markdown that goes into a model card: the runs ranked, their "
        "base, the protocol, the command that measures them again; a table for each plan. Reads "
        "records and scores only.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN",
                        help="a run's folder, or one that holds runs")  # fmt: skip
    parser.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="write it to DIR/README.md, in the place of an earlier one, with the hub's model-index in "
        "its front matter, and .eval_results/*.yaml beside",
    )
    parser.add_argument(
        "--repo",
        metavar="REPO",
        help="with --write: the model on the hub that DIR is of; the runs' records are written, too, "
        "and results name their address as the source",
    )
    parser.add_argument(
        "--push",
        metavar="REPO",
        help="show what would change in the model REPO on the hub, ask, and open a pull request",
    )
    parser.add_argument("--yes", action="store_true", help="with --push: don't ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    _check(args)
    args.screen.stage("reading the runs")
    from scoremode.results.folders.paths import run_folders

    groups = groups_of(run_folders(args.runs, args.screen.line))
    args.screen.clear()
    if args.push is not None:
        return _push(args, groups)
    if args.write is None:
        sys.stdout.write(_block(groups))
        return 0
    _write(args, groups)
    return 0


def card(folders: Sequence[Path]) -> str:
    """The block for the finished runs in `folders`. Raises UsageError, RunFolderError."""
    return _block(groups_of(folders))


def groups_of(folders: Sequence[Path]) -> "list[Group]":
    """The runs by plan and base, each group ranked, in the order in which they were named."""
    from scoremode.report.card.content import Group
    from scoremode.results.comparison.ranking import check_folders, ranked
    from scoremode.results.folders.finished import open_run

    check_folders(folders)
    runs = [open_run(folder) for folder in folders]
    for run in runs:
        if run.at("protocol.text") == "requests":
            raise UsageError(
                f"{run.folder}: answers tasks, and a card has perplexity and divergence of texts: "
                "scoremode show RUN --format markdown gives its table"
            )
    groups = []
    for members in _grouped(runs):
        value = ranked(members)
        by_folder = {str(run.folder): run.record for run in members}
        records = [by_folder[row["folder"]] for row in value["runs"]]
        group = Group(value, records, ())
        commands = joined([reproduction(record) for _, record in group.published])
        groups.append(replace(group, commands=commands))
    return groups


def _grouped(runs: "Sequence[FinishedRun]") -> "list[list[FinishedRun]]":
    """Runs that may stand in one table: of a plan, a softmax, and one base. A run without a base goes
    to the first of its plan's tables."""
    found: dict[tuple[object, ...], dict[object, list[FinishedRun]]] = {}
    for run in runs:
        plan = run.at("plan.sha256"), run.at("engine.vocabulary"), run.targets_sha256
        base = None if run.kld is None else run.at("reference.sha256")
        found.setdefault(plan, {}).setdefault(base, []).append(run)
    groups = []
    for bases in found.values():
        alone = bases.pop(None, [])
        tables = list(bases.values()) or [[]]
        tables[0] = [*tables[0], *alone]
        groups += tables
    return groups


def _block(groups: "Sequence[Group]") -> str:
    from scoremode.report.card.content import card_block

    return card_block(groups)


def _check(args: argparse.Namespace) -> None:
    if args.push is not None and args.write is not None:
        raise UsageError("--push and --write: give one of them")
    if args.repo is not None and args.write is None:
        raise UsageError(f"--repo {args.repo}: needs --write DIR")
    if args.yes and args.push is None:
        raise UsageError("--yes: needs --push REPO")
    if args.push is not None and not args.yes and not sys.stdin.isatty():
        raise UsageError(f"--push {args.push}: there is no terminal to ask on: give --yes")
    for repo in filter(None, (args.push, args.repo)):
        from scoremode.report.card.repository import check_repo

        check_repo(repo)


def _addresses(repo: str | None) -> Callable[[str], str] | None:
    from scoremode.report.card.repository import address

    return None if repo is None else partial(address, repo)


def _write(args: argparse.Namespace, groups: "Sequence[Group]") -> None:
    from scoremode.report.card.repository import README, card_files, read_readme, write_files

    model = args.repo.rpartition("/")[2] if args.repo else args.write.resolve().name
    files = card_files(
        groups,
        read_readme(args.write),
        name=str(args.write / README),
        model=model,
        address_of=_addresses(args.repo),
    )
    write_files(args.write, files)
    for path in files:
        args.screen.line(f"wrote {args.write / path}")
    _tell_left_out(args, files)


def _push(args: argparse.Namespace, groups: "Sequence[Group]") -> int:
    from scoremode.report.card.repository import (
        README,
        card_files,
        changes,
        open_request,
        remote_readme,
    )

    repo = args.push
    args.screen.stage(f"reading {repo} on the hub")
    readme, commit = remote_readme(repo)
    files = card_files(
        groups,
        readme,
        name=f"{repo}'s {README}",
        model=repo.rpartition("/")[2],
        address_of=_addresses(repo),
    )
    args.screen.clear()
    print(changes(files, readme))
    _tell_left_out(args, files)
    if not args.yes:
        args.screen.line("a record has the command line and the paths of the machine that measured")
        asked = f"Open a pull request with these {len(files)} files on {repo}? [y/N] "
        print(asked, end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            args.screen.line("nothing was sent")
            return 1
    args.screen.stage(f"opening a pull request on {repo}")
    url = open_request(repo, files, commit, "Perplexity and KL divergence, measured with scoremode")
    args.screen.clear()
    print(url)
    return 0


def _tell_left_out(args: argparse.Namespace, files: dict[str, str]) -> None:
    if not any(path.startswith(".eval_results/") for path in files):
        args.screen.line(
            "no .eval_results: the text is no data set on the hub, and these need its id"
        )
