"""The parts that commands share: what a command is, how it prints, and how one that scores runs.

A command is a class: its flags are those that it has and inherits, `run` is what it does.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from scoremode.cli.engines import engine_options
from scoremode.cli.screen import Session
from scoremode.cli.text import calibration_of, has_kept_text, text_and_protocol
from scoremode.errors import GateNotMet, UsageError, escaped
from scoremode.lib.hub import is_address
from scoremode.spec.engine import Devices, Engine
from scoremode.spec.flag import Flags
from scoremode.spec.run import Gates, Label, Model, Output, Sharding, Table, TokenText
from scoremode.spec.text import Calibration, Protocol, Stopping

if TYPE_CHECKING:
    from scoremode.checkpoint.model_files import ModelFiles
    from scoremode.report.document import Document
    from scoremode.results import gates
    from scoremode.results.record.definition import Record
    from scoremode.runs.request import Request, Result, Swap

__all__ = [
    "Command",
    "Found",
    "Measurement",
    "base_revision",
    "check_junit",
    "exit_code_of",
    "gates_of",
    "measured",
    "model_of",
    "named_model",
    "print_result",
    "print_run",
    "reads_model",
    "rendered",
    "request_of",
    "swaps_in",
    "write_gates",
]


class Found(NamedTuple):
    """What a command finds: plain data, as --json prints them, how they are shown, and its exit code.

    `run`: the folder and the record of the run that it left.
    """

    value: Any
    document: "Callable[[Any], Document]"
    code: int = 0
    run: "tuple[Path, Record] | None" = None


class Command(Flags):
    """A command, `called` so; a subclass has its flags.

    - `usage`: of its help, None for argparse's; `summary`: its line among all commands; `about`: what
      its help begins with; `examples`: command lines.
    - `is_shared`: several processes may run it together, each with a device.
    """

    usage: ClassVar[str | None] = None
    summary: ClassVar[str]
    about: ClassVar[str]
    examples: ClassVar[Sequence[str]]
    is_shared: ClassVar[bool] = False

    def run(self, session: Session) -> int:
        """Does what is asked, and prints it; returns the exit code. Raises ScoremodeError."""
        spec: Any = self
        found = self.found(session)
        quiet = getattr(spec, "quiet", False)
        print_result(session, found.value, found.document, spec.form, quiet=quiet)
        return found.code

    def found(self, session: Session) -> Found:
        """What `run` prints, of a command that has no other. Raises ScoremodeError."""
        raise NotImplementedError


class Measurement(
    Command,
    Model,
    Protocol,
    Calibration,
    Output,
    Label,
    Table,
    TokenText,
    Stopping,
    Sharding,
    Devices,
    Engine,
):
    """A command that scores a model's predictions of a text, and leaves a run."""

    is_shared = True


def model_of(spec: Model) -> str:
    """MODEL or --model. Raises UsageError for two different ones, and for none."""
    model = named_model(spec)
    if model is None:
        raise UsageError("no model: give a folder, a .gguf file or a hub id")
    return model


def named_model(spec: Model) -> str | None:
    """MODEL or --model, where one is named. Raises UsageError for two different ones."""
    if spec.model and spec.model_flag and spec.model != spec.model_flag:
        raise UsageError(f"two models: {spec.model} and --model {spec.model_flag}")
    return spec.model or spec.model_flag


def base_revision(base: str | None, revision: str | None) -> str | None:
    """--reference-revision. Raises UsageError where there is no base, or it is none of the hub's."""
    if revision is not None and base is not None and is_address(base):
        raise UsageError(
            f"--reference-revision {revision}: an address has its own: --reference hub:ORG/NAME@REV"
        )
    if revision is not None and (base is None or os.path.exists(base)):  # noqa: PTH110
        what = "there is no --reference" if base is None else f"{base} is here, not on the hub"
        raise UsageError(f"--reference-revision {revision}: changes nothing, since {what}")
    return revision


def reads_model(session: Session, model: str) -> None:
    """Has the screen name the model while its files are read, or fetched, and before it the libraries
    of versions that scoremode was not tested with."""
    from scoremode.startup.warmup import untested

    for line in untested():
        session.screen.line(line, once=True)
    # Whatever is wrong with the name is said by who opens it. A pattern names no file: on the hub it
    # has the repository before a colon, `org/repo:*.gguf`.
    is_here = os.path.exists(model)  # noqa: PTH110  Path.exists raises for a name too long
    if any(c in model for c in "*?["):
        is_here = is_here or ":" not in model
    session.screen.reads("open", model, from_hub=not is_here)


def swaps_in(
    swap: Sequence[str] | None,
    keep_dense: Sequence[str] | None = None,
    base: str | None = None,
    revision: str | None = None,
) -> "tuple[Swap, ...]":
    """The swaps that the flags ask for. Raises UsageError."""
    if not (keep_dense or swap):
        return ()
    from scoremode.runs.models import swaps_of

    return swaps_of(keep_dense or [], swap or [], base, revision)


def request_of(spec: Measurement, session: Session, **more: Any) -> "Request":
    """The run that the flags ask for; `more` are fields of `Request`. Raises ScoremodeError."""
    is_served = spec.engine == "http"
    model = _tokenizer_of_served(spec) if is_served else model_of(spec)
    if spec.output is None:
        raise UsageError("no folder to write to: give -o DIR")
    from scoremode.results.folders.paths import check_folder

    check_folder(spec.output)
    from scoremode.runs.models import predictions_in, replayed

    # One of several models that is a finished run is ranked as it is.
    predictions = None
    if not (is_served or getattr(spec, "is_sweep", False)):
        predictions = predictions_in(model)
    if predictions is not None:
        _check_replayed(spec, session)
    options = engine_options(spec, spec.engine)
    if session.ranks is not None:
        if is_served:
            raise UsageError("--engine http: one process asks the server: without torchrun or srun")
        from dataclasses import replace

        options = replace(options, device=session.ranks.take_device(spec.device))
    from scoremode.results.shards import Shard
    from scoremode.runs.request import Request
    from scoremode.startup.warmup import libraries

    reads_model(session, model)
    from_hub = spec.text is spec.file is spec.dataset_file is None and not has_kept_text(spec)
    if spec.engine == "torch" and from_hub and predictions is None:
        # The hub takes its time. A text that lies here doesn't, nor should a wrong name of one.
        libraries.modules("torch")
    from scoremode.checkpoint.model_files import (
        resolve_local,
        resolve_model,
        resolve_tokenizer,
    )

    if os.path.isfile(model) and predictions is None and not is_served:  # noqa: PTH113  Path's raises for long names
        # A text in the model's place is said before another one is asked for.
        resolve_local(model)
    found = _found_on_hub(model, spec.revision) if from_hub and not is_served else model
    if is_served:
        found = (
            resolve_tokenizer(model)
            if spec.revision is None
            else resolve_model(model, spec.revision)
        )
    if (base := more.get("reference")) is not None:
        named = base, more["reference_revision"]
        more["reference"] = found if named == (model, spec.revision) else _found_on_hub(*named)
    if spec.gpu_memory_utilization is not None and (spec.device or "cuda")[:3] == "cpu":
        session.screen.line("--gpu-memory-utilization changes nothing on a CPU")
    corpus, protocol = text_and_protocol(spec, session)
    calibration = calibration_of(spec, session)
    request = Request(
        model=found,
        corpus=corpus,
        protocol=protocol,
        options=options,
        output=spec.output,
        revision=spec.revision,
        tokenizer=spec.tokenizer,
        quantization=spec.quantization if spec.engine == "torch" else None,
        resume=spec.resume,
        token_text=spec.token_text,
        shard=None if spec.shard is None else Shard.parsed(spec.shard),
        calibration=calibration,
        command=session.command,
        ranks=session.ranks,
        **{"label": spec.label, **more},
    )
    return request if predictions is None else replayed(request, predictions)


def _tokenizer_of_served(spec: Measurement) -> str:
    """MODEL, whose config and tokenizer are read, or where there is none --tokenizer. Raises UsageError
    for neither."""
    found = named_model(spec) or spec.tokenizer
    if found is None:
        raise UsageError("--engine http: token ids are sent: whose? give --tokenizer PATH")
    return found


# Flags of a model's layers and weights, which predictions no longer have.
_OF_LAYERS = ("revision", "quantization", "swap", "keep_dense", "arithmetic", "kv_cache", "kv_scales",
              "placement", "batch_size", "shard", "noise_floor")  # fmt: skip


def _check_replayed(spec: Measurement, session: Session) -> None:
    """Raises UsageError for a flag of layers, which don't run where MODEL is predictions."""
    what = f"{model_of(spec)} holds predictions that are kept already, and no layer runs"
    if session.ranks is not None:
        raise UsageError(f"{what}: one process scores them: without --devices or torchrun")
    if spec.engine != "torch":
        raise UsageError(f"--engine {spec.engine}: {what}")
    for name in _OF_LAYERS:
        flag = spec.flags.get(name)
        if flag is not None and (value := getattr(spec, name)) != flag.default:
            shown = value[0] if isinstance(value, list) else value
            raise UsageError(f"{flag.spelled} {shown}: {what}")


def _found_on_hub(model: str, revision: str | None) -> "str | ModelFiles":
    """The files of a model or a base of the hub, found before a data set is asked for there: a
    misspelled name is the model's error, and without a network not the data set's, and a reference
    whose folder is misspelled brings its own text. Others as they are named. Raises CheckpointError."""
    from scoremode.checkpoint.gguf.names import named_gguf
    from scoremode.checkpoint.model_files import resolve_model

    is_here = os.path.exists(model)  # noqa: PTH110  Path.exists raises for a name too long
    # A pattern names several, and of a GGUF file nothing but all of it is fetched.
    if is_here or any(c in model for c in "*?[") or named_gguf(model):
        return model
    return resolve_model(model, revision)


def measured(request: "Request", session: Session) -> "Result":
    """`measure`, with progress and notices on stderr; on all ranks but the first the command's end."""
    from scoremode.runs.measure import follow, measure

    ranks, screen = request.ranks, session.screen
    if ranks is not None and not ranks.is_first:
        follow(request)
        ranks.depart()
        sys.exit(0)
    result = measure(
        request,
        progress=screen.progress,
        notify=screen.line,
        clock=session.clock,
        watch=screen.estimate if screen.is_terminal else None,
    )
    screen.clear()
    if ranks is not None:
        ranks.end()
    return result


def gates_of(spec: Gates) -> "gates.Gates":
    """The gates that the flags set. Raises UsageError."""
    from scoremode.results.gates import Gates as Limits

    names = [name for name in Gates.flags if name != "gate_on"]
    given = {n: limit for n in names if (limit := getattr(spec, n)) is not None}
    limits = {name: value for name, (value, _) in given.items()}
    typed = {name: text for name, (_, text) in given.items()}
    return Limits(**limits, on=spec.gate_on, typed=typed)


def exit_code_of(judged: "Sequence[gates.Gate]", of: Sequence[str] = ()) -> int:
    """Says on stderr which gates are not met, and with which code the command ends.

    `of`: the model of each gate, where there are several.
    """
    names = [f"{escaped(name)}: " for name in of] or [""] * len(judged)
    failed = [(name, gate) for name, gate in zip(names, judged, strict=True) if not gate.met]
    for name, gate in failed:
        print(f"scoremode: {name}{gate}", file=sys.stderr)
    if failed and all(gate.on == "upper" and gate.ci95 is None for gate in judged):
        # Exit code 4 alone reads as if the model were worse.
        words = "the text is too short for --gate-on upper, which says nothing of the model"
        print(f"scoremode: no interval: nothing was judged; {words}", file=sys.stderr)
    return GateNotMet.exit_code if failed else 0


def check_junit(path: Path | None, gates: "gates.Gates | None" = None) -> None:
    """Raises UsageError where there is no folder for `--junit`, or there are none of the `gates` whose
    verdicts it would have."""
    if path is None:
        return
    if gates is not None and not gates:
        raise UsageError(f"--junit {path}: there is no gate, such as --max-kld 0.05")
    if not path.parent.is_dir():
        raise UsageError(f"--junit {path}: there is no such folder")


def write_gates(
    path: Path | None, command: str, judged: "Sequence[gates.Gate]", record: "Record"
) -> None:
    """Writes the gates of one run as JUnit XML, where that is asked for. Raises RunFolderError."""
    if path is not None:
        from scoremode.report.junit import gate_cases, write_junit
        from scoremode.results.labels import label_of

        write_junit(path, f"scoremode {command}", gate_cases(judged, label_of(record)))


def rendered(document: "Document", form: str, *, in_file: bool = False) -> str:
    """A document as a table, Markdown or CSV, with one newline at its end; a table is made for stdout,
    or, `in_file`, for any reader."""
    if form == "csv":
        from scoremode.report.rendering import table_csv

        return table_csv(document.data)
    if form == "markdown":
        from scoremode.report.rendering import document_markdown

        return document_markdown(document) + "\n"
    from scoremode.report.terminal import FILE, document_text, terminal_of

    return document_text(document, FILE if in_file else terminal_of(sys.stdout)) + "\n"


def print_result(
    session: Session,
    value: Any,
    document: "Callable[[Any], Document]",
    form: str,
    *,
    quiet: bool = False,
) -> None:
    """Prints a command's result in place of the screen, in a form; `quiet`: but for JSON nothing."""
    session.screen.clear()
    if form == "json":
        from scoremode.lib.json import print_json

        print_json(value)
    elif not quiet:
        print(rendered(document(value), form), end="")


def print_run(
    spec: Table, session: Session, record: Mapping[str, Any], folder: Path, *, worst: bool = False
) -> None:
    """Prints a run's record and its verdicts with --json, else, but with --quiet, its table."""
    from scoremode.report.run import finished_document
    from scoremode.results.record.definition import read_document
    from scoremode.results.statistics.verdict import record_verdicts

    margin: float | None = getattr(spec, "margin", None)

    def document(_: Any) -> "Document":
        done = read_document(dict(record))
        return finished_document(done, folder, verbose=spec.verbose, worst=worst, margin=margin)

    found = [verdict.to_json() for verdict in record_verdicts(record, margin)]
    value = {**record, "verdicts": found} if found else record
    print_result(session, value, document, spec.form, quiet=spec.quiet)
