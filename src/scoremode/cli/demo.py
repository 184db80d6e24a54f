"""`scoremode demo`: measures a tiny model and its quantized variants, on this machine, now."""

import filecmp
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.command import Command, print_result
from scoremode.cli.screen import Session
from scoremode.errors import RunFolderError, UsageError
from scoremode.spec.flag import Flag, PathName
from scoremode.spec.run import Form

if TYPE_CHECKING:
    from scoremode.report.document import Document
    from scoremode.results.record.definition import Done
    from scoremode.runs.request import Result

__all__ = ["Demo"]

PROTOCOL, CONTEXT = "disjoint", 256
# The text that is measured. It is written first: a folder that has it is a demo's.
TEXT = "heldout.txt"
# The variant whose run and model are in the commands to try.
_EXAMPLE = "W4A16-g32"


class Demo(Command):
    called = "demo"
    summary = "measure a tiny model and its quantized variants"
    about = (
        "Quantizes a tiny trained Llama in thirteen formats, and measures each one's "
        "perplexity and KL divergence from the dense model on held-out text. Needs no network "
        "and no GPU. Given again, it continues after an interruption."
    )
    examples = (
        "scoremode demo",
        "scoremode demo -o folder --format json",
    )
    output: PathName = Flag(
        "keep the models, the runs and the report in DIR (default: demo)",
        "DIR",
        read=Path,
        default=Path("demo"),
        spelled="--output-path",
        also=("-o",),
    )
    form = Form("the records")

    def run(self, session: Session) -> int:
        folder = self.output
        assert folder is not None
        with resources.as_file(resources.files("scoremode.demo")) as package:
            _prepare(folder, package)
        if self.form == "table":
            _show(session, folder)
            return 0
        records = {name: result.whole for name, result in _measured(session, folder)}
        value = {name: record.document for name, record in records.items()}
        print_result(session, value, lambda _: _document(records), self.form)
        return 0


def _prepare(folder: Path, package: Path) -> None:
    """Makes the demo's folder with its text and the dense model, or finds it as an earlier call left
    it. Raises RunFolderError for a folder of something else, and where it can't be written."""
    from scoremode.lib.files import atomic, is_partial
    from scoremode.results.folders.paths import check_folder

    check_folder(folder)
    another = "name another folder with -o DIR"
    models = {
        folder / "models" / "dense" / file.name: file for file in (package / "model").iterdir()
    }
    try:
        there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        strange = [name for name in there if not is_partial(name, lambda own: own == TEXT)]
        if strange and TEXT not in there:
            raise RunFolderError(f"{folder}: holds {strange[0]}, and is no demo's: {another}")
        for path, own in {folder / TEXT: package / TEXT, **models}.items():
            if not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic(path) as file:
                    shutil.copyfile(own, file)
            elif not filecmp.cmp(path, own, shallow=False):
                raise RunFolderError(f"{path}: is not this demo's: {another}")
    except OSError as error:
        raise RunFolderError(f"{error.filename or folder}: {error.strerror}") from None


def _measured(session: Session, folder: Path) -> "Iterator[tuple[str, Result]]":
    """Yields each variant's name and its run against the dense model, as soon as it is there."""
    screen = session.screen
    screen.stage("import")
    # OpenMP's threads wait for each other thousands of times here. Those that spin meanwhile gain a
    # tenth on an idle machine, and take twenty times as long beside other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from scoremode.demo.variants import measure_variants
    from scoremode.text.corpus import from_file
    from scoremode.text.protocol import preset

    return measure_variants(
        folder / "models" / "dense",
        from_file(folder / TEXT),
        preset(PROTOCOL).override(context_length=CONTEXT),
        folder,
        command=session.command,
        progress=screen.progress,
        watch=screen.estimate if screen.is_terminal else None,
        tell=screen.stage,
    )


def _show(session: Session, folder: Path) -> None:
    """Prints what is done, each line of the table when it is known, and what to do with all that."""
    screen = session.screen

    def say(text: str) -> None:
        with screen.aside():
            print(text, flush=True)

    is_there = (folder / "runs").exists()
    earlier = "What an earlier call measured is read, not measured again.\n" if is_there else ""
    say(
        "Quantizes a tiny trained Llama in thirteen formats, and measures what each one\n"
        f"lost on text that it has not seen. Models, runs and report go to {folder}.\n"
        f"{earlier}"
    )
    runs = _measured(session, folder)
    from scoremode.demo.variants import growing_table
    from scoremode.report.terminal import terminal_of

    terminal = terminal_of(sys.stdout)
    folders: dict[str, Path] = {}
    records: dict[str, Done] = {}
    head, _, below = growing_table(records, terminal)
    say("\n".join(head))
    for name, result in runs:
        folders[name], records[name] = result.folder, result.whole
        say(growing_table(records, terminal)[1][-1])
    say("\n".join((*below, "", _words(records))))
    screen.stage("report")
    report = _report(session, folder)
    say(f"\nreport  {report}\n\n{_next(folder, folders[_EXAMPLE])}")


def _report(session: Session, folder: Path) -> str:
    """Writes the report of the runs; returns its path, or what to install first."""
    from scoremode.report.page.chart_types import plotting
    from scoremode.report.page.document import write_report

    try:
        plotting()
    except UsageError as error:
        return str(error)
    return str(write_report([folder / "runs"], folder / "report.html", command=session.command)[0])


def _document(records: "Mapping[str, Done]") -> "Document":
    from scoremode.demo.variants import variants_data
    from scoremode.report.document import Document, Prose

    table = variants_data(records)
    return Document((table, Prose(_words(records))), table)


def _words(records: "Mapping[str, Done]") -> str:
    from scoremode.report.document import interval_text

    dense = records["dense"]
    ppl = dense.metrics["ppl"]
    return (
        f"{dense.plan.scored:,} targets of held-out CPython documentation, protocol\n"
        f"{dense.protocol.name}, computed in {dense.engine.dtype}. The dense\n"
        f"model is the one before quantization. Its perplexity is {ppl.value:.2f},\n"
        f"{interval_text(ppl, '.2f')}, most of which is the text's.\n"
        "KLD is the mean of KL(dense‖model), 0 for the same predictions. It and the\n"
        "ratios are paired, token by token, so the text cancels. Acceptance is how\n"
        "often dense keeps a token that the model sampled, the half-life after how many\n"
        "tokens of this text samples of both agree in half of all cases, at best.\n"
        "Names without A16 quantize activations too, as their checkpoints declare. The\n"
        "model is tiny and made sensitive on purpose: the order is real, the sizes are\n"
        "its own."
    )


def _next(folder: Path, run: Path) -> str:
    """Commands to try, as a shell takes them here."""
    models, text = folder / "models", str(folder / TEXT)
    ours = [str(models / _EXAMPLE), "--reference", str(models / "dense"), "-f", text]
    commands = {
        "All of them ranked, and which differ beyond luck with the text:": [
            *("compare", str(folder / "runs"))
        ],
        "One of the runs in full:": ["show", "-v", str(run)],
        "Any model against its base, on any text; folders, GGUF files or hub ids:": [
            *("kld", *ours, "--protocol", PROTOCOL, "-c", str(CONTEXT))
        ],
    }
    program = _program()
    return "\n".join(
        f"{what}\n  {shlex.join([*program, *words])}" for what, words in commands.items()
    )


def _program() -> list[str]:
    """The words by which a shell finds the program that runs."""
    own = Path(sys.argv[0])
    # Within uvx and `uv run` the PATH has more than the user's shell has.
    found = None if "UV" in os.environ else shutil.which("scoremode")
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return ["scoremode"]
    return [str(own)] if own.name == "scoremode" else [sys.executable, "-m", "scoremode"]
