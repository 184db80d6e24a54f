"""`scoremode report`: finished runs as one page with charts, to open in a browser."""

import argparse
from pathlib import Path

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        help="finished runs as one page with charts",
        description="Writes one HTML file that opens from disk and needs no network: the ranking, size "
        "against KLD and perplexity with the frontier, the KLD's tail, by confidence and position, who "
        "differs from whom, the worst tokens side by side, and what was measured and how. Runs that "
        "can't be compared stand in sections of their own. Reads records and scores only.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or one that holds runs"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html)",
    )
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="write the charts as SVG and PNG into DIR, too"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.report.page.document import write_report
    from scoremode.results.folders.paths import check_folder

    if args.plots is not None:
        check_folder(args.plots)
    args.screen.stage("reading the runs")
    written = write_report(
        args.runs, args.output, args.plots, command=command, notify=args.screen.line
    )
    args.screen.clear()
    print(written[0])
    if written[1:]:
        print(f"{args.plots}: {len(written[1:])} plots: {', '.join(f.name for f in written[1:])}")
    return 0
