"""`scoremode demo`: measures a tiny model and its quantized variants, on this machine, now."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.command import Command, print_result
from scoremode.cli.screen import Session
from scoremode.spec.flag import Flag, PathName
from scoremode.spec.run import Form

if TYPE_CHECKING:
    from scoremode.report.document import Document
    from scoremode.results.record.definition import Done

__all__ = ["Demo"]

CONTEXT = 256


class Demo(Command):
    called = "demo"
    summary = "measure a tiny model and its quantized variants"
    about = (
        "Quantizes a tiny trained Llama in thirteen formats, and measures each one's "
        "perplexity and KL divergence from the dense model on held-out text. Needs no network "
        "and no GPU."
    )
    output: PathName = Flag(
        "keep the models and the records in DIR (default: keep nothing)",
        "DIR",
        read=Path,
        spelled="--output-path",
        also=("-o",),
    )
    form = Form("the records")

    def run(self, session: Session) -> int:
        from scoremode.results.folders.paths import check_folder

        if self.output is not None:
            check_folder(self.output)
            return self._measured(session, self.output, self.output)
        import tempfile

        with tempfile.TemporaryDirectory(prefix="scoremode-demo-") as folder:
            return self._measured(session, Path(folder), None)

    def _measured(self, session: Session, folder: Path, kept: Path | None) -> int:
        records = _measure_all(folder, session)
        report = _report(session, folder / "runs", kept, self.form)
        value = {name: record.document for name, record in records.items()}
        print_result(session, value, lambda _: _document(records), self.form)
        if report:
            print(f"\nreport  {report}")
        return 0


def _report(session: Session, runs: Path, folder: Path | None, form: str) -> str | None:
    """Writes the report of the runs into `folder`, or where there is none into a new one among the
    machine's temporary files; returns its path, or what to install first. None where the result is
    printed for a program to read."""
    if form != "table":
        return None
    from scoremode.errors import UsageError
    from scoremode.report.page.chart_types import plotting
    from scoremode.report.page.document import write_report

    try:
        plotting()
    except UsageError as error:
        return str(error)
    session.screen.stage("report")
    if folder is None:
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix="scoremode-demo-report-"))
    return str(write_report([runs], folder / "report.html", command=session.command)[0])


def _document(records: Mapping[str, "Done"]) -> "Document":
    from scoremode.demo.variants import variants_data
    from scoremode.report.document import Document, Prose, interval_text

    first, table = records["dense"], variants_data(records)
    words = (
        f"{first.plan.scored:,} targets of held-out CPython documentation, protocol "
        f"{first.protocol.name}, computed in {first.engine.dtype};\nthe dense model's "
        f"perplexity is {interval_text(first.metrics['ppl'], '.2f')}, most of which is the text's.\n"
        "Ratios and KL(dense‖model) are paired, token by token, so the text cancels.\n"
        "Names without A16 quantize activations too, as their checkpoints declare. The model is tiny "
        "and made\nsensitive on purpose: the order is real, the sizes are its own."
    )
    return Document((table, Prose(words)), table)


def _measure_all(folder: Path, session: Session) -> Mapping[str, "Done"]:
    """Variant name → record against the packaged model, all of them in `folder`."""
    screen = session.screen
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
            command=session.command,
            progress=screen.progress,
            tell=screen.stage,
        )
