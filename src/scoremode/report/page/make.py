"""A report of finished runs, written: the page, and its plots."""

from collections.abc import Callable, Sequence
from pathlib import Path

from scoremode.report.page.bundle import plotting
from scoremode.report.page.data import report_data
from scoremode.report.page.definition import ReportData
from scoremode.report.page.document import page
from scoremode.report.page.plots import write_plots
from scoremode.results.folders.paths import run_folders, write_output

__all__ = ["write_report"]


def write_report(
    runs: Sequence[Path],
    output: Path,
    plots: Path | None = None,
    *,
    command: Sequence[str] | None = None,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Path]:
    """Writes the report of `runs`, or of the finished runs that such folders hold, to `output`, and its
    charts as files into `plots`; returns the files written, the page first.

    - `command`: the command line, which the page names
    - `notify`, `progress`: are told which runs are left out, and how many have been read of how many

    Raises UsageError where the extra that draws charts is missing, before anything is read;
    RunFolderError for a run that can't be believed, and for a file that can't be written.
    """
    plotting()
    report: ReportData = report_data(run_folders(runs, notify), progress)
    if command is not None:
        report["command"] = list(command)
    write_output(output, page(report))
    return [output, *(write_plots(report, plots) if plots is not None else [])]
