"""`scoremode report`: finished runs as one page with charts, to open in a browser."""

from pathlib import Path

from scoremode.cli.command import Command
from scoremode.cli.screen import Session
from scoremode.spec.flag import Flag, PathName
from scoremode.spec.run import Runs

__all__ = ["Report"]


class Report(Runs, Command):
    called = "report"
    summary = "show finished runs on one page with charts"
    about = (
        "Writes one HTML file that opens from disk and needs no network: the ranking, size against KLD "
        "and perplexity with the frontier, the KLD's tail, by confidence and position, who differs "
        "from whom, the worst tokens side by side, and what was measured and how. Runs that can't be "
        "compared stand in sections of their own. Reads records and scores only."
    )
    output: Flag[str | Path, Path] = Flag(
        "write the page to FILE (default: report.html)",
        "FILE",
        read=Path,
        default=Path("report.html"),
        also=("-o",),
    )
    plots: PathName = Flag("also write the charts to DIR, as SVG and PNG", "DIR", read=Path)

    def run(self, session: Session) -> int:
        from scoremode.report.page.document import write_report
        from scoremode.results.folders.paths import check_folder

        if self.plots is not None:
            check_folder(self.plots)
        session.screen.stage("reading the runs")
        page, *plots = write_report(
            self.runs, self.output, self.plots, command=session.command, notify=session.screen.line
        )
        session.screen.clear()
        print(page)
        if plots:
            print(f"{self.plots}: {len(plots)} plots: {', '.join(file.name for file in plots)}")
        return 0
