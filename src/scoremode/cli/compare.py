"""`scoremode compare`: finished runs of one plan, ranked, each tested against the next."""

import sys
from pathlib import Path
from typing import Literal

from scoremode.cli.command import Command, rendered
from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.lib.json import json_text
from scoremode.spec.flag import Flag, PathName, Switch
from scoremode.spec.run import Form, Runs

__all__ = ["Compare"]


class Compare(Runs, Command):
    called = "compare"
    summary = "rank finished runs and test them against each other"
    about = (
        "Ranks finished runs of one plan, best first, and tests each against the next: paired, by a "
        "bootstrap over blocks of the text. Reads records and scores only. Runs of other texts, "
        "protocols, token ids or softmax widths are refused."
    )
    by: Flag[Literal["kld", "ppl"] | None, Literal["kld", "ppl"] | None] = Flag(
        "rank by this metric (default: KLD if all have one against the same reference)",
        choices=("kld", "ppl"),
    )
    groups = Switch(
        "rank the runs within each group; as CSV, one line per run and group", switch=True
    )
    form = Form("all of it")
    output: PathName = Flag(
        "write the ranking to FILE, not to stdout", "FILE", read=Path, also=("-o",)
    )

    def run(self, session: Session) -> int:
        from scoremode.report.compare import compare_document
        from scoremode.report.groups import compared_groups
        from scoremode.results.comparison.ranking import ranking
        from scoremode.results.folders.paths import run_folders, write_output

        screen = session.screen
        runs = run_folders(self.runs, screen.line)
        screen.stage(f"comparing {len(runs)} runs" if runs[1:] else "reading the run")
        value = ranking(runs, self.by)
        screen.clear()
        if self.form == "json":
            # ASCII: a model's name may hold what does something to a terminal.
            text = json_text({**value, "command": list(session.command)}, ascii_only=True)
        elif self.groups:
            if not value["groups"]:
                raise UsageError("--groups: none of the runs was measured with --group-by")
            text = rendered(compared_groups(value["groups"]), self.form)
        else:
            text = rendered(compare_document(value), self.form)
        if self.output is not None:
            write_output(self.output, text)
        else:
            sys.stdout.write(text)
        return 0
