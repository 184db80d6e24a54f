"""The package's public functions: what `import scoremode` offers.

They are the commands `ppl`, `kld`, `merge`, `reference`, `generate`, `show`, `compare` and `check`,
called from Python: each keyword is a flag of the same name, made of its one declaration in `spec`, so
that both have the same defaults, the same bounds and the same errors, and a record names the command
line that measures the same again.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from scoremode.cli.audit import Check
from scoremode.cli.generate import Generate, generated
from scoremode.errors import GateNotMet, UsageError
from scoremode.spec.engine import Devices, Engine
from scoremode.spec.flag import Flag, Switch
from scoremode.spec.run import (
    Comparison,
    Gates,
    KeepDense,
    Kept,
    Model,
    Output,
    Quiet,
    Sharding,
    Swap,
    TokenText,
)
from scoremode.spec.text import Calibration, Protocol, Stopping

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import nn

    from scoremode.cli.measure import Kld, Ppl, Reference
    from scoremode.results import gates as limits
    from scoremode.results.record.definition import Record
    from scoremode.results.record.section import Metric
    from scoremode.runs.models import InMemory

__all__ = [
    "Run",
    "Sweep",
    "card",
    "check",
    "compare",
    "generate",
    "kld",
    "measure",
    "merge",
    "open_run",
    "sweep",
    "write_report",
]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class _Keywords(Generic[P]):
    """A decorator: the function's keywords are a spec's, for type checkers and for `help`."""

    def __init__(self, spec: Callable[P, object]):
        self._spec: Any = spec

    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, C, ...], R]
    ) -> Callable[Concatenate[A, B, C, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, ...], R]
    ) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, ...], R]
    ) -> Callable[Concatenate[A, P], R]: ...
    def __call__(self, function: Any) -> Any:
        signature = inspect.signature(function)
        kinds = inspect.Parameter
        # Flags without an annotation are of a command line alone.
        keywords = {
            name: kinds(name, kinds.KEYWORD_ONLY, default=getattr(self._spec, name).default)
            for each in reversed(self._spec.__mro__)
            for name in inspect.get_annotations(each)
            if name in self._spec.flags
        }
        own = {n: p for n, p in signature.parameters.items() if p.kind != kinds.VAR_KEYWORD}
        function.__signature__ = signature.replace(parameters=[*(own | keywords).values()])
        return function


class _Scored(
    Model,
    Protocol,
    Calibration,
    Gates,
    KeepDense,
    Swap,
    Comparison,
    Kept,
    Output,
    Quiet,
    Devices,
    TokenText,
    Stopping,
    Sharding,
    Engine,
):
    """Flags of `scoremode ppl`, `kld` and `reference`."""


class _Measured(_Scored):
    """Keywords of `measure`."""

    tokenizer: Flag[Any, Any] = Model.tokenizer
    reference: "Flag[str | Path | Run | None, Any]" = Flag("the base to compare with")
    keep: Switch = Flag("make the run a reference", switch=True)


class _Swept(_Scored):
    """Keywords of `sweep`."""

    texts: Flag[str | Path | Sequence[str | Path | Mapping[str, Any]], Any] = Flag(
        "texts", default=()
    )
    protocols: Flag[str | Sequence[str | Mapping[str, Any]], Any] = Flag("protocols", default=())


class _Gates(Gates):
    called = "show"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its `folder`, and its `record` (docs/record.md), whose sections are attributes;
    `record.document` is the JSON object of its file.

    `print(run)` shows the table that the command line shows.
    """

    folder: Path
    record: "Record" = field(repr=False)

    @cached_property
    def metrics(self) -> "dict[str, Metric]":
        """Name → metric, such as `ppl`, `kld`, `ppl_ratio`, `top1`; docs/statistics.md has all.

        Each has a `value`, `ci95` (its 95 % interval, None where there is none), `n` (evaluations) and
        `note` (why there is no interval). Raises RunFolderError for a shard, which has none.
        """
        from scoremode.results.record.checks import check_done

        return check_done(self.folder, self.record).metrics

    @cached_property
    def scores(self) -> "dict[str, NDArray]":
        """Column → array [N], a row a scored target; docs/record.md lists columns, dtypes and units.

        Raises RunFolderError where the file is not the one that the record was made of, and for a
        shard.
        """
        from scoremode.results.folders.finished import read_verified
        from scoremode.results.record.checks import check_done

        record = check_done(self.folder, self.record)
        scores, extras = read_verified(self.folder, record)
        return scores.columns() | extras

    def arrow(self) -> "pa.Table":
        """The columns of `scores` as an Arrow table, for pandas (`.to_pandas()`) and polars
        (`polars.from_arrow`)."""
        import pyarrow as pa

        return pa.table(self.scores)

    @_Keywords(Gates)
    def require(self, **gates: Any) -> None:
        """Raises GateNotMet, naming every gate that the run misses; UsageError for a run without a
        base, and for what is no limit."""
        from scoremode.cli.command import gates_of

        asked = gates_of(_Gates(**gates))
        if not asked:
            raise UsageError("require: no gate is given, such as max_kld=0.05")
        _require(self, asked)

    def __str__(self) -> str:
        from scoremode.report.run import finished_document
        from scoremode.report.terminal import document_text

        return document_text(finished_document(self.record, self.folder))


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep: its `folder`, its finished `runs` in their order, and why the others `failed`: model →
    line."""

    folder: Path
    runs: list[Run] = field(repr=False)
    failed: dict[str, str]


@_Keywords(_Measured)
def measure(model: "str | Path | nn.Module", **keywords: Any) -> Run:
    """Scores a model under a protocol, writes the run's folder and returns the run.

    - `model`: a folder, a GGUF file or a hub id; or a causal language model of transformers' in memory,
      which runs as it is, on its device, and is left as it was (docs/python.md). It takes `tokenizer`,
      a folder, a hub id or a tokenizer of transformers', and no flag of how to compute.
    - `text`, `file`, `dataset`, `dataset_file`, `conversations`: the text itself, text files, a hub
      data set, a local one, one of chats, local or on the hub; at most one of them. Without any it is
      the kept reference's, or else WikiText-2.
    - `protocol`: a preset's name (docs/protocols.md), `context_length` tokens of a window.
    - `reference`: the base to compare every prediction with: a run that was kept, a model's folder or
      hub id, or a llama.cpp file of logits.
    - `keep`: makes the run a reference, whose own folder is `output` then.
    - `output`: the folder that runs go to, each to one of its own; `runs` by default.
    - `quiet`: no progress and no notices on stderr.

    A script that scores with `engine="vllm"` needs the guard `if __name__ == "__main__"`, as every
    program that starts processes. Raises ScoremodeError; GateNotMet where a gate is missed, when the
    run has been written.
    """
    _check_names("measure", measure, keywords)
    from scoremode.cli.measure import Kld, Ppl, Reference

    quiet, keep = keywords.pop("quiet", False), keywords.pop("keep", False)
    reference = keywords.get("reference")
    if keep and reference is not None:
        raise UsageError("keep and reference: a reference is of a base alone")
    if isinstance(reference, Run):
        keywords["reference"] = reference.folder
    elif not isinstance(reference, str | Path | None):
        name = type(reference).__name__
        raise UsageError(f"reference: a {name} in memory can't be a base: give its folder")
    command = Reference if keep else Ppl if reference is None else Kld
    if not isinstance(model, str | Path):
        return _measured_in_memory(model, command, keywords, quiet=quiet)
    return _measured(command.of(model=str(model), **_said(keywords)), quiet=quiet)


def kld(
    model: "str | Path | nn.Module",
    *,
    reference: "str | Path | Run",
    output: str | Path | None = None,
    quiet: bool = False,
    **more: Any,
) -> Run:
    """Compares every prediction of a model with its base's: `measure` with a `reference`.

    `more`: any other keyword of `measure`. Raises as that does.
    """
    return measure(model, reference=reference, output=output, quiet=quiet, **more)


@_Keywords(Generate)
def generate(
    base: str | Path, prompts: str | Path, output: str | Path, **keywords: Any
) -> dict[str, Any]:
    """Has a base model reply to prompts, writes the conversations to `output`, and returns the record
    beside it (docs/generate.md).

    - `prompts`: a .jsonl, .parquet or text file, or a data set on the hub.

    A call that was killed goes on where it was; one that is done finds its file. Raises ScoremodeError.
    """
    _check_names("generate", generate, keywords)
    from scoremode.cli.main import settle_imports
    from scoremode.cli.screen import shown

    quiet = keywords.pop("quiet", False)
    spec = Generate.of(model=str(base), prompts=prompts, output=output, **keywords)
    try:
        with shown(("scoremode", *spec.words()), hidden=quiet, before=0.0) as session:
            return generated(spec, session)
    finally:
        settle_imports()


def compare(
    runs: "Sequence[Run | str | Path]", *, by: Literal["kld", "ppl"] | None = None
) -> dict[str, Any]:
    """Finished runs of one plan, ranked, each tested against the next.

    Returns what `scoremode compare --format json` prints: `runs`, best first, `tests` between
    neighbours, and what else differs. `by`: what to rank by; None takes KLD where all have one against
    the same reference. A path may be a run's or of a folder that holds some, whose finished ones are
    taken. Raises UsageError, RunFolderError.
    """
    from scoremode.results.comparison.ranking import ranking
    from scoremode.results.folders.paths import run_folders

    return ranking(run_folders(_folders(runs)), by)


def card(runs: "Sequence[Run | str | Path]") -> str:
    """The block of Markdown that `scoremode card` prints for finished runs: a table for each plan, the
    protocol, and the command that measures them again. Raises UsageError, RunFolderError."""
    from scoremode.cli.card import card as card_of
    from scoremode.results.folders.paths import run_folders

    return card_of(run_folders(_folders(runs)))


@_Keywords(Check)
def check(run: "Run | str | Path | Sequence[Run | str | Path]", **keywords: Any) -> dict[str, Any]:
    """Audits one or several finished runs: makes every number, hash and token id again that can be.

    Returns what `scoremode check --json` prints: `counts` of what `held`, was `unchecked`, is `wrong`,
    and in `runs` each run's `findings`, each with `part`, `name`, `status` and `words`, and the fields
    of its record that are `not_checked`.

    - `against`: a model that scores a `share` of the windows once more (None: a tenth), on `device`.
    - `seed`: of the draw of these, None for one from the system.
    - `model`, `tokenizer`, `reference`, `file`: where these lie, if not where the record says.
    - `fetch`: whether the hub may be asked for what the run took from there.

    Raises RunFolderError where there is no finished run, UsageError, and of a second run what opening
    its model raises. What is wrong with a run raises nothing.
    """
    _check_names("check", check, keywords)
    runs = [run] if isinstance(run, Run | str | Path) else run
    return Check.of(runs=_folders(runs), **keywords).audited()


@_Keywords(_Swept)
def sweep(
    base: str | Path | Sequence[str | Path], models: Sequence[str | Path], **keywords: Any
) -> Sweep:
    """Measures every model against one base, under every text and protocol, as `scoremode sweep` does.

    - `base`: a model, a kept reference, a file of logits, or several kept references.
    - `models`: models, patterns such as `org/repo:*.gguf`, and finished runs' folders.
    - `texts`: files, or keywords of `measure` that name a text, such as `{"dataset": "wikitext"}`;
      `protocols`: names, or such keywords of protocols.
    - `output`: the folder that all goes to; the same call goes on where a killed one was.

    What fails with one model is in the result's `failed`, and the others run. Raises ScoremodeError
    where the base can't be measured; GateNotMet where a gate is missed, when all is done.
    """
    from scoremode.cli.main import settle_imports
    from scoremode.cli.measure import Kld
    from scoremode.cli.screen import shown
    from scoremode.cli.sweep import definitions, requests_of, sweep_of, swept

    names = [base] if isinstance(base, str | Path) else base
    quiet, output = keywords.pop("quiet", False), keywords.pop("output", "runs")
    asked = {
        "base": [str(name) for name in names],
        "models": [str(name) for name in models],
        "texts": keywords.pop("texts", ()),
        "protocols": keywords.pop("protocols", ()),
        "output": str(output),
        "flags": keywords,
    }
    specs = [Kld.of(**given) for given in definitions(asked)]
    try:
        with shown(hidden=quiet, before=0.0) as session:
            pairs = requests_of(specs, session)
            outcome = swept(sweep_of(specs[0], pairs, session), session, quiet=quiet)
    finally:
        settle_imports()
    runs = [Run(result.folder, result.record) for result in outcome.results if result is not None]
    entries = outcome.manifest["entries"]
    if pairs[0].gates:
        for run in runs:
            _require(run, pairs[0].gates)
    failed = {e["model"]: e["error"] for e in entries if e["error"] is not None}
    return Sweep(outcome.folder, runs, failed)


def write_report(
    runs: "Sequence[Run | str | Path]",
    output: str | Path = "report.html",
    *,
    plots: str | Path | None = None,
) -> Path:
    """Writes the page of `scoremode report` to `output`, and its charts as SVG and PNG into `plots`;
    returns the page's path.

    `runs`: as in `compare`, but those that can't be compared stand in sections of their own. Raises
    UsageError, also where the extra `scoremode[report]` is missing, and RunFolderError.
    """
    from scoremode.report.page import document as make

    folders = _folders(runs)
    return make.write_report(folders, Path(output), None if plots is None else Path(plots))[0]


def open_run(folder: str | Path) -> Run:
    """The finished run in `folder`, verified as `scoremode show` does it: its numbers are made again
    from its scores, and its record must agree. Raises RunFolderError."""
    from scoremode.results.folders.finished import load_run

    return Run(Path(folder), load_run(Path(folder))[0])


def merge(runs: "Sequence[Run | str | Path]", output: str | Path, *, quiet: bool = False) -> Run:
    """Makes one run of all the shards that `measure(..., shard="i/N")` scored (docs/devices.md), in a
    folder of its own, `output`, which must not be there yet.

    - `runs`: the shards, or folders that hold them; `quiet`: no notices on stderr.

    Raises RunFolderError where they are not all of one run, UsageError for one that is named twice.
    """
    from scoremode.cli.screen import shown
    from scoremode.results.shards.merge import merge as merge_shards

    folders = _folders(runs)
    command = ("scoremode", "merge", *map(str, folders), f"--output-path={output}")
    with shown(command, hidden=quiet, before=0.0) as session:
        record = merge_shards(folders, Path(output), command=command, notify=session.screen.line)
    return Run(Path(output), record)


def _folders(runs: "Sequence[Run | str | Path]") -> list[Path]:
    return [run.folder if isinstance(run, Run) else Path(run) for run in runs]


def _check_names(name: str, function: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for a keyword that a function doesn't have."""
    known = inspect.signature(function).parameters
    for keyword in sorted(keywords):
        if keyword not in known:
            raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}")


def _said(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that say something, a text behind the others."""
    said = {
        name: value
        for name, value in keywords.items()
        if value is not None and (value is not False or _Measured.flags[name].pair)
    }
    return said if "text" not in said else said | {"text": said.pop("text")}


def _measured_in_memory(
    module: "nn.Module",
    command: "type[Ppl | Kld | Reference]",
    keywords: dict[str, Any],
    *,
    quiet: bool,
) -> Run:
    """The run of a module in memory that keywords ask for."""
    from scoremode.runs.models import in_memory

    if (engine := keywords.get("engine", "torch")) != "torch":
        raise UsageError(f"engine={engine!r}: a module in memory computes by itself")
    for name in sorted(keywords):
        if not _Measured.flags[name].in_memory:
            raise UsageError(f"{name}={keywords[name]!r}: a module in memory is what it is")
    with in_memory(module, keywords.pop("tokenizer", None)) as asked:
        said = _said({**keywords, "tokenizer": asked.tokenizer})
        return _measured(command.of(model=asked.model, **said), quiet=quiet, asked=asked)


def _measured(
    spec: "Ppl | Kld | Reference", *, quiet: bool, asked: "InMemory | None" = None
) -> Run:
    """The run that a spec asks for; `asked`: the module in memory that its model and tokenizer stand
    for."""
    from scoremode.cli.command import measured
    from scoremode.cli.main import settle_imports
    from scoremode.cli.screen import shown

    try:
        with shown(("scoremode", *spec.words()), hidden=quiet, before=0.0) as session:
            request = spec.request(session)
            if asked is not None:
                request = asked.request(request)
            result = measured(request, session)
    finally:
        settle_imports()
    run = Run(result.folder, result.record)
    if request.gates:
        _require(run, request.gates)
    return run


def _require(run: Run, gates: "limits.Gates") -> None:
    from scoremode.results.record.checks import check_done

    record = check_done(run.folder, run.record)
    if "kld" not in record.metrics:
        raise UsageError(f"{run.folder}: has no base, which a gate on KLD, ratio or top-1 needs")
    if missed := [str(gate) for gate in gates.judge(record) if not gate.met]:
        raise GateNotMet(f"{run.folder}: {'; '.join(missed)}")
