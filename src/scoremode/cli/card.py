"""`scoremode card`: what an author puts into a model card, and the hub's metadata."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.command import Command
from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.spec.flag import Flag, Name, PathName, Switch
from scoremode.spec.run import Runs

if TYPE_CHECKING:
    from scoremode.report.card.content import Group
    from scoremode.results.folders.finished import FinishedRun

__all__ = ["Card", "card"]


class Card(Runs, Command):
    called = "card"
    summary = "make Markdown and the hub's metadata for a model card"
    about = (
        "Prints the block of Markdown that goes into a model card: the runs ranked, their base, "
        "the protocol, and the command that repeats them; one table per plan. Reads records and "
        "scores only."
    )
    write: PathName = Flag(
        "write it to DIR/README.md, replacing an earlier block, with the hub's model-index in its "
        "front matter, and .eval_results/*.yaml beside it",
        "DIR",
        read=Path,
    )
    repo: Name = Flag(
        "with --write: name the hub model that DIR belongs to; the runs' records are written, "
        "too, and results name their address as the source",
        "REPO",
    )
    push: Name = Flag(
        "show what would change in the model REPO on the hub, ask, and open a pull request", "REPO"
    )
    yes: Switch = Flag("with --push: don't ask", switch=True)

    def run(self, session: Session) -> int:
        self._check()
        session.screen.stage("reading the runs")
        from scoremode.results.folders.paths import run_folders

        groups = groups_of(run_folders(self.runs, session.screen.line))
        session.screen.clear()
        if self.push is not None:
            return self._push(self.push, groups, session)
        if self.write is None:
            sys.stdout.write(_block(groups))
        else:
            self._write(self.write, groups, session)
        return 0

    def _check(self) -> None:
        if self.push is not None and self.write is not None:
            raise UsageError("--push and --write: give one of them")
        if self.repo is not None and self.write is None:
            raise UsageError(f"--repo {self.repo}: needs --write DIR")
        if self.yes and self.push is None:
            raise UsageError("--yes: needs --push REPO")
        if self.push is not None and not self.yes and not sys.stdin.isatty():
            raise UsageError(f"--push {self.push}: there is no terminal to ask on: give --yes")
        for repo in filter(None, (self.push, self.repo)):
            from scoremode.report.card.repository import check_repo

            check_repo(repo)

    def _write(self, folder: Path, groups: "Sequence[Group]", session: Session) -> None:
        from scoremode.report.card.repository import README, card_files, read_readme, write_files

        model = self.repo.rpartition("/")[2] if self.repo else folder.resolve().name
        files = card_files(
            groups,
            read_readme(folder),
            name=str(folder / README),
            model=model,
            address_of=_addresses(self.repo),
        )
        write_files(folder, files)
        for path in files:
            session.screen.line(f"wrote {folder / path}")
        _tell_left_out(session, files)

    def _push(self, repo: str, groups: "Sequence[Group]", session: Session) -> int:
        from scoremode.report.card.repository import (
            README,
            card_files,
            changes,
            open_request,
            remote_readme,
        )

        session.screen.stage(f"reading {repo} on the hub")
        readme, commit = remote_readme(repo)
        files = card_files(
            groups,
            readme,
            name=f"{repo}'s {README}",
            model=repo.rpartition("/")[2],
            address_of=_addresses(repo),
        )
        session.screen.clear()
        print(changes(files, readme))
        _tell_left_out(session, files)
        if not self.yes:
            session.screen.line(
                "a record has the command line and the paths of the machine that measured"
            )
            asked = f"Open a pull request with these {len(files)} files on {repo}? [y/N] "
            print(asked, end="", flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                session.screen.line("nothing was sent")
                return 1
        session.screen.stage(f"opening a pull request on {repo}")
        url = open_request(
            repo, files, commit, "Perplexity and KL divergence, measured with scoremode"
        )
        session.screen.clear()
        print(url)
        return 0


def card(folders: Sequence[Path]) -> str:
    """The block for the finished runs in `folders`. Raises UsageError, RunFolderError."""
    return _block(groups_of(folders))


def groups_of(folders: Sequence[Path]) -> "list[Group]":
    """The runs by plan and base, each group ranked, in the order in which they were named."""
    from scoremode.cli.reproduction import joined, reproduction
    from scoremode.report.card.content import Group
    from scoremode.results.comparison.ranking import check_folders, ranked
    from scoremode.results.folders.finished import open_run

    check_folders(folders)
    runs = [open_run(folder) for folder in folders]
    for run in runs:
        if run.record.protocol.text == "requests":
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
        record = run.record
        plan = record.plan.sha256, record.engine.vocabulary, run.targets_sha256
        base = record.reference.sha256 if record.reference and run.kld is not None else None
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


def _addresses(repo: str | None) -> Callable[[str], str] | None:
    from scoremode.report.card.repository import address

    return None if repo is None else partial(address, repo)


def _tell_left_out(session: Session, files: dict[str, str]) -> None:
    if not any(path.startswith(".eval_results/") for path in files):
        session.screen.line(
            "no .eval_results: the text is no data set on the hub, and these need its id"
        )
