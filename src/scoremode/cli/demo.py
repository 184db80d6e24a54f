"""`scoremode demo`: measures a tiny model and its quantized variants, on this machine, now."""

import argparse
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.forms import add_form, print_result

if TYPE_CHECKING:
    from scoremode.cli.process.screen import Screen
    from scoremode.report.document import Document

__all__ = ["add_parser"]

CONTEXT = 256


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="a tiny model and its quantized variants",
        description="Quantizes a tiny trained Llama in thirteen formats and measures the perplexity of "
        "all of them, and how far their predictions are from the dense model's, on text that it was "
        "not trained on. Needs no network and no GPU.",
    )
    parser.add_argument(
        "-o",
        "--output-path",
        type=Path,
        metavar="DIR",
        help="keep the models and the records here (default: nothing is kept)",
    )
    add_form(parser, "the records")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.results.folders.paths import check_folder

    if args.output_path is not None:
        check_folder(args.output_path)
        records = _measure_all(args.output_path, command, args.screen)
        said = _report(args, args.output_path / "runs", args.output_path, command)
    else:
        with tempfile.TemporaryDirectory(prefix="scoremode-demo-") as folder:
            records = _measure_all(Path(folder), command, args.screen)
            said = _report(args, Path(folder) / "runs", None, command)
    print_result(args, records, _document)
    if said:
        print(f"\nreport  {said}")
    return 0


def _report(
    args: argparse.Namespace, runs: Path, folder: Path | None, command: tuple[str, ...]
) -> str | None:
    """Writes the report of the runs into `folder`, or where there is none into a new one among the
    machine's temporary files; returns its path, or what to install first. None where the result is
    printed for a program to read."""
    if args.form != "table":
        return None
    from scoremode.errors import UsageError
    from scoremode.report.page.chart_types import plotting
    from scoremode.report.page.document import write_report

    try:
        plotting()
    except UsageError as error:
        return str(error)
    args.screen.stage("report")
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="scoremode-demo-report-"))
    return str(write_report([runs], folder / "report.html", command=command)[0])


def _document(records: Mapping[str, dict[str, Any]]) -> "Document":
    from scoremode.demo.variants import variants_data
    from scoremode.report.document import Document, Prose, interval_text

    first, table = records["dense"], variants_data(records)
    words = (
        f"{first['plan']['scored']:,} targets of held-out CPython documentation, protocol "
        f"{first['protocol']['name']}, computed in {first['engine']['dtype']};\nthe dense model's "
        f"perplexity is {interval_text(first['metrics']['ppl'], '.2f')}, most of which is the text's.\n"
        "Ratios and KL(dense‖model) are paired, token by token, so the text cancels.\n"
        "Names without A16 quantize activations too, as their checkpoints declare. The model is tiny "
        "and made\nsensitive on purpose: the order is real, the sizes are its own."
    )
    return Document((table, Prose(words)), table)


def _measure_all(
    folder: Path, command: tuple[str, ...], screen: "Screen"
) -> Mapping[str, dict[str, Any]]:
    """Variant name → record against the packaged model, all of them in `folder`."""
    screen.stage("import")
    from scoremode.demo.variants import measure_variants
    from scoremode.text.corpus import from_file
    from scoremode.text.protocol import preset

    with resources.as_file(resources.files("scoremode.demo")) as package:
        return measure_variants(
            package / "model",
            from_file(package / "heldout.txt"),
            preset("disjoint").override(context_length=CONTEXT),
            folder,
            command=command,
            progress=screen.progress,
            tell=screen.stage,
        )
