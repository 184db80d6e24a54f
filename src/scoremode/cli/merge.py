"""`scoremode merge`: the shards of a run made the one run that they are of."""

from collections.abc import Sequence
from pathlib import Path

from scoremode.cli.command import Command, exit_code_of, gates_of, print_run
from scoremode.cli.screen import Session
from scoremode.spec.flag import Flag, Flags, PathName
from scoremode.spec.run import Form, Gates, Table

__all__ = ["Merge"]


class _Shards(Flags):
    runs: Flag[Sequence[str | Path], list[Path]] = Flag(
        "a shard's folder, or a folder of shards", "RUN", read=Path, positional=True, nargs="+"
    )
    output: PathName = Flag(
        "write the merged run to this folder, which must not exist yet",
        "DIR",
        read=Path,
        spelled="--output-path",
        also=("-o",),
        required=True,
    )


class Merge(_Shards, Table, Gates, Command):
    called = "merge"
    usage = "scoremode merge RUN … -o DIR [flags]"
    summary = "combine the shards of --shard i/N into one run"
    about = (
        "Combines all shards that scoremode ppl or kld scored with --shard into one run: the "
        "scores and metrics of a single process's run, to the bit. Missing shards, duplicates and "
        "shards of another run are refused. Reads the shards only: no model, no text. Exit code "
        "4: a gate was not met."
    )
    verbose = Table.verbose.but(group=None)
    form = Form("the record")
    quiet = Table.quiet.but(help="print no table", group=None)

    def run(self, session: Session) -> int:
        from scoremode.results.shards.merge import merge

        gates, folder = gates_of(self), self.output
        assert folder is not None
        session.screen.stage("merging")
        record = merge(
            self.runs, folder, gates=gates, command=session.command, notify=session.screen.line
        )
        session.screen.clear()
        print_run(self, session, record.document, folder)
        return exit_code_of(gates.judge(record) if gates else [])
