"""The commands that read runs which others have measured: `show`, `compare`, `merge`, `report` and
`status`. None loads a model."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scoremode.cli.command import (
    Command,
    Found,
    check_junit,
    exit_code_of,
    gates_of,
    print_result,
    print_run,
    rendered,
    write_gates,
)
from scoremode.cli.screen import Session
from scoremode.errors import ScoremodeError, UsageError
from scoremode.spec.flag import Flag, Flags, Name, Number, PathName, Switch
from scoremode.spec.run import Form, Gates, Junit, Label, Margin, Runs, Table
from scoremode.spec.values import count_of, finite, probability_of, title_of

if TYPE_CHECKING:
    from scoremode.results.folders.finished import FinishedRun
    from scoremode.results.folders.status import StatusReader
    from scoremode.text.token_class import TokenTable

__all__ = ["Compare", "Merge", "Report", "Show", "Status"]


class _Run(Flags):
    folder: Flag[str | Path, Path] = Flag(
        "a run's folder, or a ladder's", "RUN", read=Path, positional=True
    )
    worst: Number = Flag(
        "show the N targets with the largest KLD, and their text", "N", read=count_of
    )
    groups = Switch(
        "show all metrics of each --group-by group and of each position in assistant turns; as "
        "CSV, one line per group of every kind",
        switch=True,
    )
    confident: Flag[float | str | None, float | None] = Flag(
        "count flips where the base gave its top token a probability above P (default: the "
        "record's)",
        "P",
        read=probability_of,
    )


class Show(_Run, Margin, Table, Gates, Junit, Command):
    called = "show"
    usage = "scoremode show RUN [flags]"
    summary = "print a finished run's table"
    about = (
        "Prints the table of a finished run, and checks it against gates. Reads its record "
        "and scores only."
    )
    examples = (
        "scoremode show runs/RUN -v",
        "scoremode show runs/RUN --worst 20",
        "scoremode show runs/RUN --max-kld 0.05 --gate-on upper",
    )
    quiet = Table.quiet.but(help="print no table")

    def run(self, session: Session) -> int:
        from scoremode.results.folders.finished import open_run, read_verified
        from scoremode.results.ladder import is_ladder
        from scoremode.results.record.sections import remade

        if is_ladder(self.folder):
            from scoremode.cli.ladder import show_ladder

            return show_ladder(self, session)
        gates = gates_of(self)
        check_junit(self.junit, gates)
        found = open_run(self.folder)
        for asked, flag, needed in (
            (bool(gates), "a gate on KLD, ratio or top-1", found.base_nll),
            (self.worst, "--worst", found.kld),
            (self.confident is not None, "--confident", found.kld),
        ):
            if asked and needed is None:
                lacks = "no base" if found.base_nll is None else "no exact divergence"
                raise UsageError(f"{self.folder}: has {lacks}, which {flag} needs")
        judged = gates.judge(found.record) if gates else []
        shown: dict[str, Any] = dict(found.record.document)
        if self.confident is not None:
            scores = read_verified(self.folder, found.record)
            shown |= remade(found.record, *scores, self.confident)
        if self.groups:
            return _print_groups(self, session, shown)
        if judged:
            shown["gates"] = [gate.to_json() for gate in judged]
        if self.worst:
            shown["worst"] = _worst(self, session, found)
        print_run(self, session, shown, self.folder, worst=bool(self.worst))
        write_gates(self.junit, self.called, judged, found.record)
        return exit_code_of(judged)


def _print_groups(spec: Show, session: Session, record: dict[str, Any]) -> int:
    from scoremode.report.groups import groups_document
    from scoremode.results.record.definition import read_document

    if spec.worst:
        raise UsageError("--groups and --worst: each is a table of its own")
    document = groups_document(read_document(record))
    if spec.form != "csv" and not document.parts:
        raise UsageError(
            f"{spec.folder}: was measured without --group-by, and not on assistants' turns: it has no "
            "groups but those of show -v"
        )
    print_result(session, record, lambda _: document, spec.form, quiet=spec.quiet)
    return 0


def _worst(spec: Show, session: Session, found: "FinishedRun") -> list[dict[str, Any]]:
    """The run's worst targets: the record's where it has as many, others from the scores."""
    assert spec.worst is not None
    kept = found.record.document.get("worst") or []
    # A list shorter than it might be is whole.
    if spec.worst <= len(kept) or len(kept) < 10:
        return kept[: spec.worst]
    from scoremode.results.folders.finished import read_verified
    from scoremode.results.statistics.divergence import stream_of, worst_tokens

    scores, _ = read_verified(spec.folder, found.record)
    assert scores.against is not None
    table = _token_table(session, found)
    return worst_tokens(
        scores, scores.against, stream=stream_of(scores), table=table, count=spec.worst
    )


def _token_table(session: Session, found: "FinishedRun") -> "TokenTable | None":
    """The run's tokenizer's table where that still lies where it did, None with a notice where not."""
    from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
    from scoremode.text.token_class import token_table

    source = found.record.tokenizer.source
    try:
        # A name on the hub is not asked for: nothing here needs a network.
        if not Path(source).exists():
            raise UsageError(f"{source}: doesn't exist")
        tokenizer = checkpoint_tokenizer(source)
        if tokenizer.sha256 != found.record.tokenizer.sha256:
            raise UsageError(f"{source}: has a different tokenizer now")
        return token_table(tokenizer)
    except ScoremodeError as error:
        session.screen.line(f"showing token ids without text: {error}")
        return None


class Compare(Runs, Command):
    called = "compare"
    summary = "rank finished runs and test them against each other"
    about = (
        "Ranks finished runs of one plan, best first, and tests each against the next: "
        "paired, by a bootstrap over blocks of the text. Reads records and scores only. Runs "
        "with different texts, protocols, token ids or softmax widths are refused."
    )
    examples = (
        "scoremode compare runs",
        "scoremode compare runs/Q4 runs/Q5 --by ppl --format markdown",
    )
    by: Flag[Literal["kld", "ppl"] | None, Literal["kld", "ppl"] | None] = Flag(
        "rank by this metric (default: KLD if all have one against the same reference)",
        choices=("kld", "ppl"),
    )
    margin: Flag[float | str | None, float | None] = Margin.margin
    groups = Switch(
        "rank the runs within each group; as CSV, one line per run and group", switch=True
    )
    form = Form("all of it")
    output = PathName(
        "write the ranking to FILE instead of stdout", "FILE", read=Path, also=("-o",)
    )

    def run(self, session: Session) -> int:
        from scoremode.report.compare import compare_document
        from scoremode.report.groups import compared_groups
        from scoremode.results.comparison.ranking import ranking
        from scoremode.results.folders.paths import run_folders, write_output

        screen = session.screen
        runs = run_folders(self.runs, screen.line)
        screen.stage(f"comparing {len(runs)} runs" if runs[1:] else "reading the run")
        value = ranking(runs, self.by, self.margin)
        screen.clear()
        if self.form == "json":
            from scoremode.lib.json import json_text

            # ASCII: a model's name may hold what does something to a terminal.
            text = json_text({**value, "command": list(session.command)}, ascii_only=True)
        else:
            if self.groups and not value["groups"]:
                raise UsageError("--groups: none of the runs was measured with --group-by")
            document = compared_groups(value["groups"]) if self.groups else compare_document(value)
            text = rendered(document, self.form, in_file=self.output is not None)
        if self.output is not None:
            write_output(self.output, text)
        else:
            sys.stdout.write(text)
        return 0


class _Shards(Flags):
    runs = Flag[Sequence[str | Path], list[Path]](
        "a shard's folder, or a folder of shards", "RUN", read=Path, positional=True, nargs="+"
    )
    output = PathName(
        "write the merged run to this folder, which must not exist yet",
        "DIR",
        read=Path,
        spelled="--output-path",
        also=("-o",),
        required=True,
    )


class Merge(_Shards, Label, Margin, Table, Gates, Junit, Command):
    called = "merge"
    usage = "scoremode merge RUN … -o DIR [flags]"
    summary = "combine the shards of --shard i/N into one run"
    about = (
        "Combines all shards that scoremode ppl or kld scored with --shard into one run: the "
        "scores and metrics of a single process's run, to the bit. Missing shards, duplicates and "
        "shards of another run are refused. Reads the shards only: no model, no text. Exit code "
        "4: a gate was not met."
    )
    examples = (
        "scoremode merge shard-1 shard-2 shard-3 -o merged",
        "scoremode merge shards -o merged --max-kld 0.05",
    )
    label = Label.label.but(
        help="call the model TEXT in tables, charts and the record (default: what the first shard "
        "says)"
    )
    quiet = Table.quiet.but(help="print no table")

    def run(self, session: Session) -> int:
        from scoremode.results.shards.merge import merge

        gates, folder = gates_of(self), self.output
        check_junit(self.junit, gates)
        assert folder is not None
        session.screen.stage("merging")
        record = merge(
            self.runs,
            folder,
            gates=gates,
            label=self.label,
            command=session.command,
            notify=session.screen.line,
        )
        session.screen.clear()
        print_run(self, session, record.document, folder)
        judged = gates.judge(record) if gates else []
        write_gates(self.junit, self.called, judged, record)
        return exit_code_of(judged)


class Report(Runs, Margin, Command):
    called = "report"
    summary = "show finished runs on one page with charts"
    about = (
        "Writes one HTML file that opens from disk and needs no network: the ranking, size "
        "against KLD and perplexity with the Pareto frontier, the tail of the KLD, breakdowns "
        "by confidence and position, tests of all pairs, the worst tokens side by side, and "
        "each run's setup. Runs that can't be compared get separate sections. Reads records "
        "and scores only."
    )
    examples = (
        "scoremode report runs",
        "scoremode report runs/Q4 runs/Q5 -o q4-q5.html --plots plots",
    )
    output: Flag[str | Path, Path] = Flag(
        "write the page to FILE (default: report.html)",
        "FILE",
        read=Path,
        default=Path("report.html"),
        also=("-o",),
    )
    title: Name = Flag(
        "put TEXT above the page (default: the base and the text)", "TEXT", read=title_of
    )
    plots: PathName = Flag("also write the charts to DIR, as SVG and PNG", "DIR", read=Path)

    def run(self, session: Session) -> int:
        from scoremode.report.page.document import write_report
        from scoremode.results.folders.paths import check_folder

        if self.plots is not None:
            check_folder(self.plots)
        screen = session.screen
        screen.stage("runs")
        page, *plots = write_report(
            self.runs,
            self.output,
            self.plots,
            title=self.title,
            margin=self.margin,
            command=session.command,
            notify=screen.line,
            progress=screen.progress,
        )
        screen.clear()
        print(page)
        if plots:
            print(f"{self.plots}: {len(plots)} files, SVG and PNG")
        return 0


# Seconds between two looks, and the shortest that may be asked for.
_EVERY, _SHORTEST = 2.0, 0.1


class Status(Runs, Command):
    called = "status"
    summary = "show the progress of runs and their results so far"
    about = (
        "Prints for each run whether it is running, killed, done or invalid, how many windows "
        "are done, its rate, the time left, and its numbers so far with their intervals; for "
        "a sweep also which models are waiting, and which failed. Reads only: running "
        "processes are not disturbed."
    )
    examples = (
        "scoremode status runs",
        "scoremode status runs --watch 10",
    )
    watch = Flag[float | None, float | None](
        f"refresh this often (default: {_EVERY:g}) until nothing is running",
        "SECONDS",
        read=finite,
        nargs="?",
        const=_EVERY,
    )
    form = Form("all that is known about each run")

    def run(self, session: Session) -> int:
        if self.watch is None:
            return super().run(session)
        from scoremode.report.runs import status_document
        from scoremode.results.folders.status import StatusReader

        if self.watch < _SHORTEST:
            raise UsageError(f"--watch {self.watch:g}: must be at least {_SHORTEST:g} seconds")
        reader = StatusReader()
        states = self._states(reader)
        if not _runs(states):
            print_result(session, states, status_document, self.form)
            return 0
        session.screen.clear()
        screen, shown = _Redrawn(), ""
        while True:
            if self.form == "json":
                from scoremode.lib.json import json_text

                text = json_text(states, ascii_only=True)
            else:
                text = rendered(status_document(states), self.form)
            if text != shown:
                screen.put(text)
                shown = text
            if not _runs(states):
                return 0
            time.sleep(self.watch)
            states = self._states(reader)

    def found(self, session: Session) -> Found:
        from scoremode.report.runs import status_document
        from scoremode.results.folders.status import StatusReader

        return Found(self._states(StatusReader()), status_document)

    def _states(self, reader: "StatusReader") -> list[dict[str, Any]]:
        from scoremode.results.folders.status import found_runs
        from scoremode.runs.sweep.manifest import unfinished

        wanted = {path: unfinished(path) for path in self.runs}
        found = (
            run for path in self.runs for run in found_runs(path, is_sweep=wanted[path] is not None)
        )
        states = [reader.status(folder) for folder in dict.fromkeys(found)]
        # A model whose run is invalid has failed in its sweep, for the same reason.
        known = [state["problem"] for state in states if state["state"] == "invalid"]
        waiting = [state for each in wanted.values() for state in each or ()]
        return states + [
            state
            for state in waiting
            if not (state["state"] == "failed" and any(why in state["problem"] for why in known))
        ]


def _runs(states: list[dict[str, Any]]) -> bool:
    """Tells whether a run goes on, or a sweep has models left."""
    return any(
        state["state"] == "running" or (state["state"] == "waiting" and not state["problem"])
        for state in states
    )


class _Redrawn:
    """Text on stdout, which the next one replaces on a terminal, and follows anywhere else."""

    def __init__(self) -> None:
        self._lines = 0

    def put(self, text: str) -> None:
        if self._lines and sys.stdout.isatty():
            # To the first line's beginning, and everything from there on away.
            sys.stdout.write(f"\x1b[{self._lines}F\x1b[J")
        elif self._lines:
            sys.stdout.write("\n")
        sys.stdout.write(text)
        sys.stdout.flush()
        self._lines = text.count("\n")
