"""`scoremode ladder`: from a base in float32 to what is served, a step at a time, to tell where a loss
comes from: the weights, the arithmetic or the engine.

Each step is a command line of `scoremode kld`, which `--dry-run` prints, and which runs here, or, where
it is vLLM's, in a process of its own.
"""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import (
    Command,
    Found,
    base_revision,
    check_junit,
    exit_code_of,
    gates_of,
    model_of,
    print_result,
    reads_model,
)
from scoremode.cli.engines import options_among
from scoremode.cli.screen import Session, shown
from scoremode.cli.text import NAMING, protocol_of
from scoremode.errors import (
    EngineError,
    InvalidMeasurement,
    ProtocolError,
    ScoremodeError,
    UsageError,
    escaped,
)
from scoremode.spec.engine import Engine
from scoremode.spec.flag import Flag, Flags, Group, Number, PathName, Place, Switch
from scoremode.spec.run import (
    COMPARISON,
    OUTPUT,
    Against,
    Form,
    Gates,
    Junit,
    Model,
    Named,
    Output,
    Quiet,
    ReferenceRevision,
)
from scoremode.spec.text import Protocol, Seed

if TYPE_CHECKING:
    from scoremode.cli.finished import Show
    from scoremode.lib.interpreters import Interpreter
    from scoremode.llama_cpp.tool import Tool
    from scoremode.results.gates import Gate
    from scoremode.runs.ladder.ladder import Work
    from scoremode.runs.ladder.steps import LadderRequest

__all__ = ["Ladder", "measured_words", "show_ladder"]

# Enough for an interval under any protocol, and a few minutes of a small model on a CPU.
_WINDOWS = 32
_SKIPPED = ("base", "inputs", "kv-cache", "vllm-prefill", "vllm-decode", "llama.cpp",
            "llama-perplexity")  # fmt: skip
# The flags that the steps differ in.
_OWN = ("arithmetic", "kv_cache", "kv_scales", "attention", "decode")


class _Steps(Flags, group=Group("steps")):
    skip: Flag[Sequence[str], list[str]] = Flag(
        "leave this step out; repeatable", "STEP", choices=_SKIPPED, repeats=True, default=[]
    )
    vllm_python: PathName = Flag(
        "run vLLM's steps in this interpreter, or this environment's, which has the same scoremode",
        "PATH",
        read=Path,
        common=True,
    )
    llama_cpp: PathName = Flag(
        "find llama-perplexity in this folder, of llama.cpp's source or release (default: on PATH)",
        "DIR",
        read=Path,
    )
    keep_states: Switch = Flag(
        "keep every step's final states, which are else deleted when the next step is done",
        switch=True,
    )
    dry_run = Switch(
        "list the steps with their command lines, and why others are left out; runs nothing",
        switch=True,
    )


class _Printed(Flags, part="output", group=OUTPUT):
    form = Form("the manifest, ladder.json, with its findings")
    quiet: Switch = Quiet.quiet


class Ladder(
    Named,
    Against,
    _Steps,
    Gates,
    Junit,
    ReferenceRevision,
    Model,
    Protocol,
    _Printed,
    Engine,
    Command,
):
    called = "ladder"
    usage = "scoremode ladder MODEL --reference BASE [flags]"
    summary = "find where a loss comes from: weights, arithmetic or engine"
    about = (
        "Leads from BASE in float32 to MODEL as it is served, a step at a time: BASE in its own dtype, "
        "quantized weights, quantized inputs, the KV cache, vLLM's prefill and decode, llama.cpp. Each "
        "step is compared with the one before and with BASE in float32, and what rounding doesn't "
        "explain is an alarm. Rerun the same command to resume. Exit code 1: a step failed; 3: an "
        "alarm; 4: the last step misses a gate."
    )
    examples = (
        "scoremode ladder QUANT --reference BASE",
        "scoremode ladder QUANT --reference BASE --vllm-python ~/vllm/bin/python",
        "scoremode ladder QUANT.gguf --reference BASE -f wiki.test.raw --dry-run",
    )
    reference: Place = Against.reference.but(
        help="begin with this base: a model's folder, .gguf file or hub id"
    )
    reference_revision = ReferenceRevision.reference_revision.but(group=COMPARISON)
    limit: Number = Protocol.limit.but(
        help=f"score only the first W windows (default: {_WINDOWS})", default=_WINDOWS
    )
    seed: Number = Seed.seed.but(group=Group("sampling"))
    output: PathName = Output.output.but(
        help="write the ladder to this folder (default: runs/ladder-MODEL)",
        default=None,
        group=OUTPUT,
    )
    arithmetic = Engine.arithmetic.but(common=False)

    def found(self, session: Session) -> Found:
        check_junit(self.junit)
        from scoremode.lib.interpreters import find_interpreter

        place = self.vllm_python
        interpreter = None if place is None else find_interpreter(place)
        request = self._request(session, interpreter)
        reads_model(session, request.model)
        if self.dry_run:
            from scoremode.report.ladder import foreseen_document
            from scoremode.runs.ladder.steps import foreseen

            return Found(foreseen(request), foreseen_document)
        from scoremode.report.ladder import ladder_document
        from scoremode.runs.ladder.ladder import run_ladder

        ladder = run_ladder(
            request, _runner(session, request, interpreter), notify=session.screen.line
        )
        session.screen.clear()
        judged = _judged(self, request.output)
        value: dict[str, Any] = {**ladder, "folder": str(request.output)}
        if judged:
            value["gates"] = [gate.to_json() for gate in judged]
        _write_cases(self.junit, "scoremode ladder", value, judged)
        return Found(value, ladder_document, _code(value, judged, quiet=self.quiet))

    def _request(self, session: Session, interpreter: "Interpreter | None") -> "LadderRequest":
        """The ladder that the flags ask for. Raises UsageError."""
        from scoremode.engines.torch.options import TorchOptions
        from scoremode.results.folders.paths import check_folder
        from scoremode.results.labels import Named as Called
        from scoremode.runs.ladder.steps import LadderRequest

        self._check()
        model = model_of(self)
        safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in Called.typed(model).name)
        output = self.output or Path("runs") / f"ladder-{safe}"
        check_folder(output)
        text = self._given(lambda flag: flag.part in ("text", "protocol"))
        is_named = any(getattr(self, name) is not None for name in NAMING)
        from_stdin = self.file is not None and any(str(file) == "-" for file in self.file)
        either = ("trust_remote_code", "gpu_memory_utilization")
        tokenizer = self._given(lambda flag: flag.name == "tokenizer")
        reference = self.reference_revision
        base_revision(self.reference, reference)
        return LadderRequest(
            model=model,
            base=str(self.reference),
            options=TorchOptions(
                dtype=self.dtype,
                device=self.device,
                max_memory=self.max_memory,
                memory_share=self.gpu_memory_utilization,
                trust_remote_code=self.trust_remote_code,
            ),
            output=output,
            revision=self.revision,
            base_revision=reference,
            text=text,
            again=text if is_named and not from_stdin else (),
            files=self._files(),
            model_words=self._given(lambda flag: flag.name == "revision"),
            base_words=[f"--revision={reference}"] if reference else (),
            tokenizer=tokenizer,
            torch=self._given(lambda f: f.engine == "torch" or f.name in either),
            vllm=self._given(
                lambda f: (
                    f.part == "engine"
                    and f.engine != "torch"
                    and f.name not in ("dtype", "kv_cache")
                )
            ),
            skip=self.skip,
            vllm_python=interpreter and interpreter.path,
            llama_cpp=self._tool(),
            keep=self.keep_states,
            command=session.command,
        )

    def _tool(self) -> "Tool | str":
        """llama-perplexity, or the reason why it can't be had. Raises EngineError where the folder that
        is named has none."""
        from scoremode.llama_cpp.export import check_exportable
        from scoremode.llama_cpp.tool import find_tool

        try:
            check_exportable(protocol_of(self))
        # Not hidden: it is the reason that the step is left out with.
        except ProtocolError as error:
            return f"{error}: --protocol llama.cpp"
        try:
            return find_tool(self.llama_cpp)
        except EngineError as error:
            if self.llama_cpp is not None:
                raise
            return str(error)

    def _given(self, wanted: Callable[[Flag[Any, Any]], bool]) -> tuple[str, ...]:
        """Words of those flags that are not as they are by default; of --limit always."""
        return tuple(
            word
            for name, flag in self.flags.items()
            if wanted(flag) and name not in _OWN
            if (value := getattr(self, name)) != flag.default or name == "limit"
            # What is recorded of a long text is not enough to score it.
            for word in (flag.but(longest=None) if flag.longest else flag).words(value)
        )

    def _files(self) -> list[Path]:
        """Files and folders on this machine that text and protocol are read from."""
        given = [
            getattr(self, name)
            for name, flag in self.flags.items()
            if flag.part in ("text", "protocol") and flag.path
        ]
        each = [v for value in given for v in (value if isinstance(value, list) else [value])]
        return [Path(str(v)) for v in each if v is not None and str(v) != "-"]

    def _check(self) -> None:
        """Raises UsageError for flags that a ladder doesn't have, and for a base that is no model."""
        for name in _OWN:
            flag, value = self.flags[name], getattr(self, name)
            if value != flag.default:
                said = flag.spelled if value is True else f"{flag.spelled} {value}"
                raise UsageError(f"{said}: is what the steps of a ladder differ in")
        # Now, and not only after the steps before vLLM's.
        for engine in ("torch", "vllm"):
            options_among(self, engine, ("torch", "vllm"), {})
        from scoremode.reference.stored import is_run
        from scoremode.runs.baselines import is_logits_file

        path = Path(str(self.reference))
        if is_run(path) or is_logits_file(path):
            raise UsageError(
                f"--reference {path}: is no model, and a ladder runs its base in float32 and in its "
                "own dtype: give the base's checkpoint"
            )


def show_ladder(spec: "Show", session: Session) -> int:
    """Prints the ladder in a folder, made again from its runs; returns the exit code. Raises UsageError
    for what is of one run, RunFolderError."""
    for flag, given in (
        ("--worst", spec.worst),
        ("--groups", spec.groups),
        ("--confident", spec.confident),
        ("--margin", spec.margin),
    ):
        if given is not None and given is not False:
            raise UsageError(
                f"{flag}: is of one run, and {spec.folder} is a ladder: name a step's folder in it"
            )
    check_junit(spec.junit)
    from scoremode.report.ladder import ladder_document
    from scoremode.results.ladder import finished_ladder

    value: dict[str, Any] = {**finished_ladder(spec.folder), "folder": str(spec.folder)}
    judged = _judged(spec, spec.folder)
    if judged:
        value["gates"] = [gate.to_json() for gate in judged]
    _write_cases(spec.junit, "scoremode show", value, judged)
    print_result(session, value, ladder_document, spec.form, quiet=spec.quiet)
    return _code(value, judged, quiet=spec.quiet)


def _write_cases(
    junit: Path | None, command: str, value: dict[str, Any], judged: "Sequence[Gate]"
) -> None:
    if junit is not None:
        from scoremode.report.junit import ladder_cases, write_junit

        write_junit(junit, command, ladder_cases(value, judged))


def _judged(spec: Gates, folder: Path) -> "list[Gate]":
    """The gates, held against the last step, which is what is served."""
    gates = gates_of(spec)
    if not gates:
        return []
    from scoremode.results.folders.finished import load_run
    from scoremode.results.ladder import read_ladder, step_folders

    ladder = read_ladder(folder)
    assert ladder is not None
    return gates.judge(load_run(step_folders(folder, ladder)[-1])[0])


def _code(value: Any, judged: "Sequence[Gate]", *, quiet: bool) -> int:
    """Says on stderr what failed, and which gate is not met; returns the exit code."""
    gates = exit_code_of(judged)
    failed = [step for step in value["steps"] if step["status"] == "failed"]
    for step in failed if quiet else ():
        print(f"scoremode: {escaped(step['name'])}: {escaped(step['reason'])}", file=sys.stderr)
    if failed:
        names = ", ".join(step["name"] for step in failed)
        print(f"scoremode: error: steps failed, as said above: {names}", file=sys.stderr)
        return ScoremodeError.exit_code
    return _alarm_code(value) or gates


def _alarm_code(value: Any) -> int:
    from scoremode.results.ladder import alarms_of

    return InvalidMeasurement.exit_code if alarms_of(value["findings"]) else 0


def _runner(
    session: Session, request: "LadderRequest", interpreter: "Interpreter | None"
) -> "Callable[[Work], Path]":
    """Runs the command lines of a ladder: the torch engine's here, vLLM's in processes of their own, by
    the interpreter that has it, and llama-perplexity for what it predicts."""
    screen = session.screen

    def run(work: "Work") -> Path:
        def receive(message: Sequence[Any]) -> None:
            kind, value = message
            if kind == "stage":
                screen.stage(value, work.title)
            elif kind == "notify":
                screen.line(value, once=True)
            else:
                screen.progress(*value)

        screen.stage("open", work.title)
        own = copy(session)
        own.command = ("scoremode", *work.words)
        if work.engine == "llama.cpp":
            from scoremode.cli.main import parsed_command
            from scoremode.runs.ladder.ladder import write_served

            spec: Any = parsed_command(work.words)
            asked = spec.request(own)
            screen.stage("score", work.title)
            return write_served(request, asked, screen.progress)
        if work.engine == "torch":
            from scoremode.runs.sweep.model import free_device

            folder = _measured(own, work.words, receive)
            free_device()
            return Path(folder)
        from scoremode.lib.interpreters import run_elsewhere
        from scoremode.lib.processes import run_apart

        words = list(work.words)
        if work.python is None:
            return Path(run_apart(work.title, measured_words, words, receive=receive))
        assert interpreter is not None
        there = f"{__name__}:{measured_words.__name__}"
        return Path(run_elsewhere(work.title, interpreter, there, words, receive=receive))

    return run


def measured_words(send: Callable[[Any], None], words: Sequence[str]) -> str:
    """The folder of the run that a command line makes, in a process of its own; `send` takes its
    stages, progress and notices. Raises ScoremodeError."""
    with shown(("scoremode", *words), hidden=True, before=0.0) as session:
        return _measured(session, words, send)


def _measured(session: Session, words: Sequence[str], send: Callable[[Any], None]) -> str:
    from scoremode.cli.main import parsed_command
    from scoremode.runs.measure import measure
    from scoremode.startup.clock import StageClock

    session.clock = StageClock(tell=lambda stage, _: send(("stage", stage)))
    spec: Any = parsed_command(words)
    request = replace(spec.request(session), resume="if-there")
    result = measure(
        request,
        progress=lambda *counts: send(("progress", counts)),
        notify=lambda line: send(("notify", line)),
        clock=session.clock,
    )
    return str(result.folder)
