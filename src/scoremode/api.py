"""The package's public functions: what `import scoremode` offers.

They are the commands, called from Python: each keyword is a flag of the same name, made of its one
declaration (`spec.keywords`), so that both have the same defaults, the same bounds and the same errors,
and a record names the command line that measures the same again. A command that measures gives its
`Run`, any other its `Findings`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.attribute import Attribute
from scoremode.cli.audit import Check, Verify
from scoremode.cli.command import Command, Found
from scoremode.cli.finished import Compare, Merge, Report, Status
from scoremode.cli.generate import Generate
from scoremode.cli.inspect import Inspect
from scoremode.cli.ladder import Ladder
from scoremode.cli.measure import Plan
from scoremode.cli.tasks import Tasks
from scoremode.errors import GateNotMet, UsageError
from scoremode.spec.engine import Devices, Engine, Http
from scoremode.spec.flag import Flag, Switch
from scoremode.spec.keywords import Keywords, in_keywords, names_keywords
from scoremode.spec.run import (
    Comparison,
    Gates,
    KeepDense,
    Kept,
    Label,
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
    from scoremode.cli.screen import Session
    from scoremode.report.document import Document
    from scoremode.results import gates as limits
    from scoremode.results.record.definition import Record
    from scoremode.results.record.section import Metric
    from scoremode.results.statistics.verdict import Verdict
    from scoremode.runs.models import InMemory

__all__ = [
    "Attribution",
    "Findings",
    "Run",
    "Sweep",
    "attribute",
    "card",
    "check",
    "compare",
    "generate",
    "inspect",
    "kld",
    "ladder",
    "measure",
    "merge",
    "open_run",
    "plan",
    "status",
    "sweep",
    "tasks",
    "verify",
    "write_report",
]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its `folder`, and its `record` (docs/record.md), whose sections are attributes;
    `record.document` is the JSON object of its file.

    `print(run)` shows the table that the command line shows, and a notebook the same as HTML.
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

    def verdicts(self, margin: float | str | None = None) -> "list[Verdict]":
        """What the run shows beside its base: KLD, PPL ratio and acceptance, or all tasks together;
        nothing of a run without a base.

        Each has a `kind` (`worse`, `better`, `equivalent`, `undecided`), the `margin`, by how much at
        least (`by`), what this text would find (`detectable`), and how many targets would decide
        (`needed`); `words()` says it. `margin`: 0.01 is 1 % of the perplexity, or 0.01 nats; None for
        each metric's own. Raises UsageError for what is no margin.
        """
        from scoremode.results.statistics.verdict import record_verdicts

        asked = Compare.of(runs=[self.folder], margin=margin).margin
        return record_verdicts(self.record.document, asked)

    @Keywords(Gates)
    def require(self, **gates: Any) -> None:
        """Raises GateNotMet, naming every gate that the run misses; UsageError for a run without a
        base, and for what is no limit."""
        from scoremode.cli.command import gates_of

        asked = gates_of(Gates(**gates))
        if not asked:
            raise UsageError("require: no gate is given, such as max_kld=0.05")
        _require(self, asked)

    def __str__(self) -> str:
        from scoremode.report.run import finished_document
        from scoremode.report.terminal import document_text

        return document_text(finished_document(self.record, self.folder))

    def _repr_html_(self) -> str:
        from scoremode.report.rendering import document_html
        from scoremode.report.run import finished_document

        return document_html(finished_document(self.record, self.folder))


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """The result of a command that finds something out: `document`, the JSON value that its `--json`
    prints.

    `findings["runs"]` is `findings.document["runs"]`. `print(findings)` shows the table that the
    command line shows, and a notebook the same as HTML.
    """

    document: Any
    _shown: "Callable[[Any], Document]"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of `--format csv`, as for `pandas.DataFrame(findings.rows)`: a column's name, with
        the unit of its numbers, → a value, every number in full, None where there is none."""
        from scoremode.report.rendering import table_rows

        return table_rows(self._shown(self.document).data)

    def __getitem__(self, key: Any) -> Any:
        return self.document[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    def __str__(self) -> str:
        from scoremode.report.terminal import document_text

        return document_text(self._shown(self.document))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from scoremode.report.rendering import document_html

        return document_html(self._shown(self.document))


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Findings):
    """Which part of a model makes how much of its KLD; `run`: the comparison that was attributed, or,
    of a recipe, the run of the chosen mixture."""

    run: Run


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep: its `folder`, its finished `runs` in their order, and why the others `failed`: model →
    line.

    `print(sweep)` shows the table that the command line shows, and a notebook the same as HTML.
    """

    folder: Path
    runs: list[Run] = field(repr=False)
    failed: dict[str, str]
    _pairs: Sequence[Sequence[Run]] = field(repr=False)

    @cached_property
    def rankings(self) -> list[Findings]:
        """The ranking of the runs of each text and protocol, as `compare` gives it. Raises UsageError
        and RunFolderError for runs that can't be compared."""
        return [compare(runs) for runs in self._pairs if runs]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all rankings, as for `pandas.DataFrame(sweep.rows)`; where there are several,
        each row names its text and its protocol."""
        from scoremode.report.compare import rankings_table
        from scoremode.report.rendering import table_rows

        if len(self.rankings) < 2:
            return [row for ranking in self.rankings for row in ranking.rows]
        return table_rows(rankings_table([ranking.document for ranking in self.rankings]))

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.rankings))

    def _repr_html_(self) -> str:
        return "\n".join(ranking._repr_html_() for ranking in self.rankings)


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
    Http,
    Engine,
):
    """Flags of `scoremode ppl`, `kld` and `reference`."""


class _Compared(_Scored, Label):
    """Keywords of `kld`."""

    tokenizer: Flag[Any, Any] = Model.tokenizer
    reference: Flag[str | Path | Run | None, Any] = Flag("compare with this base")


class _Measured(_Compared):
    """Keywords of `measure`."""

    keep: Switch = Flag("make the run a reference", switch=True)


class _Swept(_Scored):
    """Keywords of `sweep`."""

    texts: Flag[str | Path | Sequence[str | Path | Mapping[str, Any]], Any] = Flag(
        "score each of these texts", default=()
    )
    protocols: Flag[str | Sequence[str | Mapping[str, Any]], Any] = Flag(
        "score them under each of these protocols", default=()
    )


class _Inspected(Inspect, Quiet):
    """Keywords of `inspect`."""


class _Planned(Plan, Quiet):
    """Keywords of `plan`."""


@Keywords(_Measured)
def measure(model: "str | Path | nn.Module | None", **keywords: Any) -> Run:
    """Scores a model under a protocol, writes the run's folder and returns the run.

    - `model`: a folder, a GGUF file or a hub id; or a causal language model of transformers in memory,
      which runs as it is, on its device, and is not changed (docs/python.md). Such a model needs
      `tokenizer` (a folder, a hub id or a tokenizer of transformers), and takes no flag on how to
      compute. None for a served one (`engine="http"`), with `tokenizer`.
    - `text`, `file`, `dataset`, `dataset_file`, `conversations`: the text itself, text files, a hub
      data set, a local data set, or chats, local or on the hub. Give at most one. The default is the
      text of the kept reference, or else WikiText-2.
    - `protocol`: a preset's name (docs/protocols.md), `context_length` tokens of a window.
    - `reference`: the base to compare every prediction with: a run that was kept, or its address
      (`hub:ORG/NAME@REV`, `https://…`), a model's folder or hub id, or a llama.cpp file of logits.
    - `keep`: keeps the run as a reference, also one beside a base; `output` is then its own folder.
    - `output`: the folder in which each run gets a folder of its own; `runs` by default.
    - `quiet`: no progress and no notices on stderr.

    A script that scores with `engine="vllm"` needs the guard `if __name__ == "__main__"`, as every
    program that starts processes. Raises ScoremodeError; GateNotMet where a gate is missed, when the
    run has been written.
    """
    from scoremode.cli.measure import Kld, Ppl, Reference

    quiet, keep = keywords.pop("quiet", False), keywords.get("keep", False)
    reference = keywords.get("reference")
    if keep and reference is None:
        del keywords["keep"]
    if isinstance(reference, Run):
        keywords["reference"] = reference.folder
    elif not isinstance(reference, str | Path | None):
        name = type(reference).__name__
        raise UsageError(f"reference: a {name} in memory can't be a base: give its folder")
    command = Kld if reference is not None else Reference if keep else Ppl
    for name, value in _said(keywords).items():
        if name not in command.flags:
            needed = "keep=True" if name in Kept.flags else "a reference to compare with"
            why = (
                "is not for keep=True"
                if command is Reference
                else f"changes nothing without {needed}"
            )
            raise UsageError(f"{name}={value!r}: {why}")
    if not isinstance(model, str | Path | None):
        return _measured_in_memory(model, command, keywords, quiet=quiet)
    return _measured(command.of(**_of_model(model), **_said(keywords)), quiet=quiet)


@Keywords(_Compared)
def kld(
    model: "str | Path | nn.Module | None", *, reference: "str | Path | Run", **keywords: Any
) -> Run:
    """Compares every prediction of a model with its base's: `measure` with a `reference`.

    Other keywords are those of `measure`. Raises as that does.
    """
    return measure(model, reference=reference, **keywords)


@Keywords(Tasks)
def tasks(model: str | Path, tasks: str | Sequence[str], **keywords: Any) -> Run:
    """Runs tasks of lm-evaluation-harness and returns the run, whose `record.tasks` has their metrics
    (docs/tasks.md).

    - `tasks`: names of tasks, groups or tags of the harness: a list, or one string with commas.
    - `reference`: a base, whose answers each of the model's is paired with.
    - `limit`: questions of each task; below 1 a share of them.
    - `context_length`: tokens that the model gets at a time.

    Raises ScoremodeError; UsageError also where the extra `scoremode[lm-eval]` is missing.
    """
    quiet = keywords.pop("quiet", False)
    names = tasks if isinstance(tasks, str) else ",".join(tasks)
    return _measured(Tasks.of(model=str(model), tasks=names, **keywords), quiet=quiet)


@Keywords(Attribute)
def attribute(model: str | Path, **keywords: Any) -> Attribution:
    """Attributes a model's KL divergence from its base to its parts (docs/damage.md).

    - `reference`: the base: a model's folder, a GGUF file or a hub id.
    - `by`: what is one part: a decoder `layer`, a `module`, or all modules of a `kind`.
    - `limit`: windows of the text that are scored, the first 16 by default.
    - `alone`: leaves out what needs the model's own hidden states, which takes half the time.
    - `budget`: bits per weight; chooses each part's format among the model, the quants in `others` and
      the base, for the lowest KLD within it, and measures the mixture. `write_recipe`: a file for the
      choice as llm-compressor's recipe.

    Rows have a unit each, the one that alone makes the most first; KLDs are in nats. Raises
    ScoremodeError.
    """
    quiet = keywords.pop("quiet", False)
    found = _found(Attribute.of(model=str(model), **keywords), quiet=quiet)
    assert found.run
    return Attribution(found.value, found.document, Run(*found.run))


@Keywords(Ladder)
def ladder(model: str | Path, *, reference: str | Path, **keywords: Any) -> Findings:
    """Leads from a base in float32 to a model as it is served, a step at a time (docs/ladder.md), to
    tell whether a loss comes from the weights, the arithmetic or the engine.

    - `reference`: the base: a model's folder, a GGUF file or a hub id.
    - `limit`: windows of the text that are scored, the first 32 by default.
    - `vllm_python`: the interpreter that has vLLM, if not this one; `skip`: steps to leave out.
    - `output`: the ladder's folder; the same call goes on where a killed one was.

    In the document `steps` says what became of each step, and `findings` has the `verdict`, and in
    `steps` each one against the step before and against the top, with its share and its `alarm`. A step
    that fails raises nothing, nor does an alarm. A script that has vLLM's steps needs the guard `if
    __name__ == "__main__"`. Raises ScoremodeError where the base can't be measured; GateNotMet where
    the last step misses a gate, when all is done.
    """
    quiet = keywords.pop("quiet", False)
    asked = {"reference": str(reference), **keywords}
    found = _found(Ladder.of(model=str(model), **asked), quiet=quiet)
    missed = [gate for gate in found.value.get("gates", ()) if not gate["met"]]
    if missed:
        said = "; ".join(
            f"{gate['name']}={gate['limit']:g}: {gate['value']:.6g}" for gate in missed
        )
        raise GateNotMet(f"{found.value['folder']}: gate not met: {said}")
    return Findings(found.value, found.document)


@Keywords(_Planned)
def plan(model: str | Path | None, **keywords: Any) -> Findings:
    """Divides a text as a run would: windows, targets, BOS, hashes; no weights are loaded.

    - `model`: a folder, a GGUF file or a hub id, whose config and tokenizer are read; None needs a
      `tokenizer`.
    - Text and protocol: as in `measure`.

    The document's `plan` has the counts, as a record has them (docs/record.md). Raises UsageError,
    CorpusError, TokenizerError, CheckpointError, ProtocolError.
    """
    return _findings(Plan, keywords, **_of_model(model))


@Keywords(_Inspected)
def inspect(model: str | Path | None, **keywords: Any) -> Findings:
    """Reads a checkpoint's headers: formats, sizes, bits per weight, and what would run here.

    - `model`: a folder, a GGUF file or a hub id; None needs a `config`, a config.json to be inspected
      alone.
    - `device`: what would run is told for `cpu`, `cuda` or `cuda:1`; a GPU by default, if there is one.

    In the document `runs` says whether a run is `possible`, and the `reason` why not; `formats` has
    modules, parameters and bits per weight of each format. Raises CheckpointError, UsageError.
    """
    return _findings(Inspect, keywords, **_of_model(model))


@Keywords(Verify)
def verify(model: str | Path, **keywords: Any) -> Findings:
    """Scores sampled windows with each engine and with a float32 reference, and compares them.

    - `engines`: `torch`, `vllm` or `torch,vllm`; `windows` of the text are drawn by `seed`.

    In the document `agree` says whether all differences are within rounding; none raises anything.
    Raises ScoremodeError.
    """
    return _findings(Verify, keywords, model=str(model))


@Keywords(Generate)
def generate(
    base: str | Path, prompts: str | Path, output: str | Path, **keywords: Any
) -> Findings:
    """Has a base model reply to prompts, writes the conversations to `output`, and returns the record
    beside it (docs/conversations.md).

    - `prompts`: a .jsonl, .parquet or text file, or a data set on the hub.

    A call that was killed goes on where it was; one that is done finds its file. Raises ScoremodeError.
    """
    asked = keywords | {"prompts": prompts, "output": output}
    return _findings(Generate, asked, model=str(base))


@Keywords(Compare)
def compare(runs: "Run | str | Path | Sequence[Run | str | Path]", **keywords: Any) -> Findings:
    """Finished runs of one plan, ranked, each tested against the next.

    - `runs`: runs, their folders, or folders that hold some, whose finished ones are taken.
    - `by`: what to rank by, `kld` or `ppl`; None takes KLD where all have one against the same
      reference.
    - `margin`: within which a run is equivalent to its base, or to another: 0.01 is 1 % of the
      perplexity, or 0.01 nats of KLD; None for that.

    Rows are the base, where it is no run of its own, then the runs, best first; KLDs are in nats, and
    `_low` and `_high` are the ends of 95 % intervals. The document has `tests` between neighbors, and
    what else differs. Raises UsageError, RunFolderError.
    """
    from scoremode.report.compare import compare_document
    from scoremode.results.comparison.ranking import ranking
    from scoremode.results.folders.paths import run_folders

    spec = Compare.of(runs=_folders(runs), **keywords)
    return Findings(ranking(run_folders(spec.runs), spec.by, spec.margin), compare_document)


@names_keywords
def card(runs: "Run | str | Path | Sequence[Run | str | Path]") -> str:
    """The block of Markdown that `scoremode card` prints for finished runs: a table for each plan, the
    protocol, and the command that measures them again. Raises UsageError, RunFolderError."""
    from scoremode.cli.card import card as card_of
    from scoremode.results.folders.paths import run_folders

    return card_of(run_folders(_folders(runs)))


@Keywords(Check)
def check(run: "Run | str | Path | Sequence[Run | str | Path]", **keywords: Any) -> Findings:
    """Audits one or several finished runs: makes every number, hash and token id again that can be.

    - `against`: a model that scores a `share` of the windows once more (None: a tenth), on `device`.
    - `seed`: of the draw of these, None for one from the system.
    - `model`, `tokenizer`, `reference`, `file`: where these lie, if not where the record says.
    - `fetch`: whether the hub may be asked for what the run took from there.

    The document has `counts` of what `held`, was `unchecked`, is `wrong`, and in `runs` each run's
    `findings`, each with `part`, `name`, `status` and `words`, and the fields of its record that are
    `not_checked`; rows have a finding each. Raises RunFolderError where there is no finished run,
    UsageError, and of a second run what opening its model raises. What is wrong with a run raises
    nothing.
    """
    return _findings(Check, keywords, runs=_folders(run))


@Keywords(Status)
def status(runs: "Run | str | Path | Sequence[Run | str | Path]", **keywords: Any) -> Findings:
    """The progress of runs and their results so far.

    - `runs`: runs, their folders, or folders that hold some, such as a sweep's.

    The document is a list, a run an item: its `state` (`running`, `killed`, `done`, `invalid`, of a
    sweep's models also `waiting` and `failed`), the `windows` that are done, of how many, and
    `estimates`. Nothing is disturbed. Raises UsageError, RunFolderError.
    """
    return _findings(Status, keywords | {"quiet": True}, runs=_folders(runs))


@Keywords(_Swept)
def sweep(
    base: str | Path | Sequence[str | Path],
    models: Sequence[str | Path | Mapping[str, str]],
    **keywords: Any,
) -> Sweep:
    """Measures every model against one base, under every text and protocol, as `scoremode sweep` does.

    - `base`: a model, a kept reference, a file of logits, or several kept references.
    - `models`: models, patterns such as `org/repo:*.gguf`, and finished runs' folders; a model that has
      a label as `{"model": …, "label": …}`.
    - `texts`: files, or keywords of `measure` that name a text, such as `{"dataset": "wikitext"}`;
      `protocols`: names, or such keywords of protocols.
    - `output`: the folder that all goes to; the same call goes on where a killed one was.

    What fails with one model is in the result's `failed`, and the others run. Raises ScoremodeError
    where the base can't be measured; GateNotMet where a gate is missed, when all is done.
    """
    from scoremode.cli.measure import Kld
    from scoremode.cli.sweep import definitions, requests_of, sweep_of, swept

    names = [base] if isinstance(base, str | Path) else base
    quiet, output = keywords.pop("quiet", False), keywords.pop("output", "runs")
    asked = {
        "base": [str(name) for name in names],
        "models": [model if isinstance(model, Mapping) else str(model) for model in models],
        "texts": keywords.pop("texts", ()),
        "protocols": keywords.pop("protocols", ()),
        "output": str(output),
        "flags": keywords,
    }
    try:
        specs = [Kld.of(**given) for given in definitions(asked)]
    except UsageError as error:
        raise UsageError(f"sweep: {error}") from None
    with _session((), quiet=quiet) as session:
        pairs = requests_of(specs, session)
        outcome = swept(sweep_of(specs[0], pairs, session), session, quiet=quiet)
    entries = outcome.manifest["entries"]
    runs, groups = [], [{} for _ in pairs]
    for entry, result in zip(entries, outcome.results, strict=True):
        if result is not None:
            runs.append(Run(result.folder, result.record))
            # A run may have been given beside its model.
            groups[entry["pair"]].setdefault(result.folder.resolve(), runs[-1])
    if pairs[0].gates:
        for run in runs:
            _require(run, pairs[0].gates)
    failed = {
        e["model"]: in_keywords(e["error"], keywords) for e in entries if e["error"] is not None
    }
    return Sweep(outcome.folder, runs, failed, [[*group.values()] for group in groups])


@names_keywords
def write_report(
    runs: "Run | str | Path | Sequence[Run | str | Path]",
    output: str | Path = "report.html",
    *,
    title: str | None = None,
    plots: str | Path | None = None,
    margin: float | str | None = None,
) -> Path:
    """Writes the page of `scoremode report` to `output`, and its charts as SVG and PNG into `plots`;
    returns the page's path.

    `runs`: as in `compare`, but those that can't be compared stand in sections of their own; `title`:
    the page's, which names the base and the text by default; `margin`: as in `compare`. Raises
    UsageError, also where the extra `scoremode[report]` is missing, and RunFolderError.
    """
    from scoremode.report.page import document as make

    given = {"output": output, "plots": plots, "title": title, "margin": margin}
    asked = Report.of(runs=_folders(runs), **given)
    of = {"title": asked.title, "margin": asked.margin}
    return make.write_report(asked.runs, asked.output, asked.plots, **of)[0]


@names_keywords
def open_run(folder: str | Path) -> Run:
    """The finished run in `folder`, verified as `scoremode show` does it: its numbers are made again
    from its scores, and its record must agree. Raises RunFolderError."""
    from scoremode.results.folders.finished import load_run

    return Run(Path(folder), load_run(Path(folder))[0])


@Keywords(Merge)
def merge(
    runs: "Run | str | Path | Sequence[Run | str | Path]", output: str | Path, **keywords: Any
) -> Run:
    """Makes one run of all the shards that `measure(..., shard="i/N")` scored (docs/devices.md), in a
    folder of its own, `output`, which must not be there yet.

    - `runs`: the shards, or folders that hold them; `quiet`: no notices on stderr.
    - `label`: what to call the model in tables and charts; None for what the first shard says.

    Raises RunFolderError where they are not all of one run, UsageError for one that is named twice, and
    GateNotMet where a gate is missed, when the run has been written.
    """
    from scoremode.cli.command import gates_of
    from scoremode.results.shards.merge import merge as merge_shards

    quiet = keywords.pop("quiet", False)
    spec = Merge.of(runs=_folders(runs), output=output, **keywords)
    gates = gates_of(spec)
    with _session(("scoremode", *spec.words()), quiet=quiet) as session:
        record = merge_shards(
            spec.runs,
            Path(output),
            gates=gates,
            label=spec.label,
            command=session.command,
            notify=session.screen.line,
        )
    run = Run(Path(output), record)
    if gates:
        _require(run, gates)
    return run


def _folders(runs: "Run | str | Path | Sequence[Run | str | Path]") -> list[Path]:
    several = [runs] if isinstance(runs, Run | str | Path) else runs
    if not several:
        raise UsageError("no runs: give at least one")
    return [run.folder if isinstance(run, Run) else Path(run) for run in several]


def _said(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that say something, a text behind the others."""
    said = {
        name: value
        for name, value in keywords.items()
        if value is not None and (value is not False or _Measured.flags[name].pair)
    }
    return said if "text" not in said else said | {"text": said.pop("text")}


@contextmanager
def _session(command: tuple[str, ...], *, quiet: bool) -> "Iterator[Session]":
    """A command at work, whose imports in other threads are done at its end."""
    from scoremode.cli.main import settle_imports
    from scoremode.cli.screen import shown

    try:
        with shown(command, hidden=quiet, before=0.0) as session:
            yield session
    finally:
        settle_imports()


def _found(spec: Command, *, quiet: bool) -> Found:
    with _session(("scoremode", *spec.words()), quiet=quiet) as session:
        return spec.found(session)


def _findings(command: type[Command], keywords: dict[str, Any], **named: Any) -> Findings:
    """What a command finds; `named`: what its function has parameters for."""
    quiet = keywords.pop("quiet", False)
    found = _found(command.of(**named, **keywords), quiet=quiet)
    return Findings(found.value, found.document)


def _of_model(model: str | Path | None) -> dict[str, str]:
    return {} if model is None else {"model": str(model)}


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
    spec: "Ppl | Kld | Reference | Tasks", *, quiet: bool, asked: "InMemory | None" = None
) -> Run:
    """The run that a spec asks for; `asked`: the module in memory that its model and tokenizer stand
    for."""
    from scoremode.cli.command import measured

    with _session(("scoremode", *spec.words()), quiet=quiet) as session:
        request = spec.request(session)
        if asked is not None:
            request = asked.request(request)
        result = measured(request, session)
    run = Run(result.folder, result.record)
    if request.gates:
        _require(run, request.gates)
    return run


def _require(run: Run, gates: "limits.Gates") -> None:
    from scoremode.results.record.checks import check_done

    record = check_done(run.folder, run.record)
    if "ppl_ratio" not in record.metrics:
        raise UsageError(f"{run.folder}: has no base, which a gate on KLD, ratio or top-1 needs")
    if missed := [str(gate) for gate in gates.judge(record) if not gate.met]:
        raise GateNotMet(f"{run.folder}: {'; '.join(missed)}")
