"""`scoremode show`: a finished run's table again, its gates, its worst tokens."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import Command, exit_code_of, gates_of, print_result, print_run
from scoremode.cli.screen import Session
from scoremode.errors import ScoremodeError, UsageError
from scoremode.spec.flag import Flag, Flags, Number, Switch
from scoremode.spec.run import Form, Gates, Table
from scoremode.spec.values import count_of, probability_of

if TYPE_CHECKING:
    from scoremode.results.folders.finished import FinishedRun
    from scoremode.text.token_class import TokenTable

__all__ = ["Show"]


class _Run(Flags):
    folder: Flag[str | Path, Path] = Flag("a run's folder", "RUN", read=Path, positional=True)
    worst: Number = Flag(
        "show the N targets with the largest KLD, and their text", "N", read=count_of
    )
    groups = Switch(
        "show all metrics of each --group-by group and of each position in assistant turns; as "
        "CSV, one line per group of every kind",
        switch=True,
    )
    confident: Flag[float | str | None, float | None] = Flag(
        "count flips where the base gave its top token more than probability P (default: the "
        "record's)",
        "P",
        read=probability_of,
    )


class Show(_Run, Table, Gates, Command):
    called = "show"
    summary = "print a finished run's table"
    about = (
        "Prints the table of a finished run, and holds it against gates. Reads its record and scores "
        "only."
    )
    verbose = Table.verbose.but(group=None)
    form = Form("the record")
    quiet = Table.quiet.but(help="print no table", group=None)

    def run(self, session: Session) -> int:
        from scoremode.results.folders.finished import open_run, read_verified
        from scoremode.results.record.sections import remade

        gates, found = gates_of(self), open_run(self.folder)
        for asked, flag in (
            (bool(gates), "a gate on KLD, ratio or top-1"),
            (self.worst, "--worst"),
            (self.confident is not None, "--confident"),
        ):
            if asked and found.kld is None:
                raise UsageError(f"{self.folder}: has no base, which {flag} needs")
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
            raise UsageError(f"{source}: is not there")
        tokenizer = checkpoint_tokenizer(source)
        if tokenizer.sha256 != found.record.tokenizer.sha256:
            raise UsageError(f"{source}: is another tokenizer now")
        return token_table(tokenizer)
    except ScoremodeError as error:
        session.screen.line(f"token ids and no text: {error}")
        return None
