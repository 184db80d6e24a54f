"""The package's public functions: what `import scoremode` offers.

They are the commands `ppl`, `kld`, `merge`, `reference`, `generate`, `show`, `compare` and `check`,
called from Python: each keyword is a flag of the same name and is read by that command's own parser, so
that both have the same defaults, the same bounds and the same errors, and a record names the command
line that measures the same again.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from scoremode.errors import GateNotMet, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import nn

    from scoremode.results.gates import Gates
    from scoremode.results.statistics.bootstrap import Metric
    from scoremode.runs.models import InMemory

__all__ = [
    "GateOptions",
    "GenerateOptions",
    "Options",
    "Run",
    "Sweep",
    "card",
    "check",
    "compare",
    "flags_of",
    "generate",
    "kld",
    "measure",
    "merge",
    "open_run",
    "sweep",
    "write_report",
]

# A text that is longer stands in a record's command by its length alone.
_LONGEST_TEXT = 1000


class GateOptions(TypedDict, total=False):
    """Limits of a comparison, as the flags of the same names have them; shares also as "90%"."""

    max_kld: float
    max_kld_p99: float
    max_ppl_ratio: float
    min_top1: float | str
    gate_on: Literal["value", "upper"]


class Options(GateOptions, total=False):
    """Keywords of `measure` that most calls leave alone: flags of `scoremode ppl`, `kld` and
    `reference`, whose --help describes them. Sizes may be numbers or such as "10GiB" and "32k"."""

    revision: str
    tokenizer: str | Path
    preset: str
    dataset_config: str
    dataset_revision: str
    split: str
    text_field: str
    score: Literal["assistant", "completion", "all"]
    long: Literal["truncate", "split", "skip"]
    group_by: str
    chat_template: str | Path
    chat_template_kwargs: Mapping[str, Any]
    chat_date: str
    skip_bad_rows: int
    num_samples: int
    calibration: str | Path
    calibration_config: str
    calibration_revision: str
    calibration_split: str
    calibration_field: str
    stride: int | str
    bos: Literal["auto", "always", "never"]
    vocabulary: Literal["config", "tokenizer", "head"]
    limit: int
    stop_when: str
    seed: int
    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    arithmetic: Literal["auto", "weights", "weights+activations", "llama.cpp"]
    kv_cache: str
    kv_scales: str
    max_memory: int | str
    placement: Literal["auto", "device", "host", "disk"]
    batch_size: int
    trust_remote_code: bool
    keep_dense: Sequence[str]
    swap: Sequence[str]
    quantization: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_memory_utilization: float
    disable_custom_all_reduce: bool
    enforce_eager: bool
    max_num_batched_tokens: int
    head_dtype: Literal["model", "float32"]
    engine_arg: Sequence[str]
    strict: bool
    resume: bool
    token_text: bool
    shard: str
    reference_revision: str
    full: bool
    confident: float
    noise_floor: Literal["auto", "attention", "dtype", "engine"]
    head: Literal["stored", "checkpoint"]


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate` that most calls leave alone: flags of `scoremode generate`, whose --help
    describes them."""

    revision: str
    tokenizer: str | Path
    num_samples: int
    samples_per_prompt: int
    system: str
    dataset_config: str
    dataset_revision: str
    split: str
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    chat_template: str | Path
    chat_template_kwargs: Mapping[str, Any]
    chat_date: str
    engine: Literal["torch", "vllm"]
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    trust_remote_code: bool
    device: str
    batch_size: int
    tensor_parallel_size: int
    engine_arg: Sequence[str]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its `folder`, and its `record` (docs/record.md) as plain values.

    `print(run)` shows the table that the command line shows.
    """

    folder: Path
    record: dict[str, Any] = field(repr=False)

    @cached_property
    def metrics(self) -> "dict[str, Metric]":
        """Name → metric, such as `ppl`, `kld`, `ppl_ratio`, `top1`; docs/statistics.md has all.

        Each has a `value`, `ci95` (its 95 % interval, None where there is none), `n` (evaluations) and
        `note` (why there is no interval). Raises RunFolderError for a shard, which has none.
        """
        from scoremode.results.record.checks import check_done
        from scoremode.results.statistics.bootstrap import Metric

        check_done(self.folder, self.record)
        return {
            name: Metric(m["value"], tuple(m["ci95"]) if m["ci95"] else None, m["n"], m["note"])
            for name, m in self.record["metrics"].items()
        }

    @cached_property
    def scores(self) -> "dict[str, NDArray]":
        """Column → array [N], a row a scored target; docs/record.md lists columns, dtypes and units.

        Raises RunFolderError where the file is not the one that the record was made of, and for a
        shard.
        """
        from scoremode.results.folders.finished import read_verified
        from scoremode.results.record.checks import check_done

        check_done(self.folder, self.record)
        scores, extras = read_verified(self.folder, self.record)
        return scores.columns() | extras

    def arrow(self) -> "pa.Table":
        """The columns of `scores` as an Arrow table, for pandas (`.to_pandas()`) and polars
        (`polars.from_arrow`)."""
        import pyarrow as pa

        return pa.table(self.scores)

    def require(self, **gates: Unpack[GateOptions]) -> None:
        """Raises GateNotMet, naming every gate that the run misses; UsageError for a run without a
        base, and for what is no limit."""
        from scoremode.cli.flags.gates import add_gates, gates_of
        from scoremode.cli.flags.parser import Parser

        parser = Parser(prog="scoremode show", add_help=False)
        add_gates(parser)
        asked = gates_of(parser.parse_args(flags_of(gates)))
        if not asked:
            raise UsageError("require: no gate is given, such as max_kld=0.05")
        _require(self, asked)

    def __str__(self) -> str:
        from scoremode.report.rendering import document_text
        from scoremode.report.run import finished_document

        return document_text(finished_document(self.record, self.folder))


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep: its `folder`, its finished `runs` in their order, and why the others `failed`: model →
    line."""

    folder: Path
    runs: list[Run] = field(repr=False)
    failed: dict[str, str]


def measure(
    model: "str | Path | nn.Module",
    *,
    text: str | None = None,
    file: str | Path | Sequence[str | Path] | None = None,
    dataset: str | None = None,
    dataset_file: str | Path | None = None,
    conversations: str | Path | None = None,
    protocol: str | None = None,
    context_length: int | str | None = None,
    reference: "str | Path | Run | None" = None,
    keep: bool = False,
    output: str | Path | None = None,
    engine: Literal["torch", "vllm"] = "torch",
    quiet: bool = False,
    **options: Unpack[Options],
) -> Run:
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
    if keep and reference is not None:
        raise UsageError("keep and reference: a reference is of a base alone")
    if reference is not None and not isinstance(reference, str | Path | Run):
        name = type(reference).__name__
        raise UsageError(f"reference: a {name} in memory can't be a base: give its folder")
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise TypeError(f"measure() got an unexpected keyword argument {unknown[0]!r}")
    given = {
        "file": [file] if isinstance(file, str | Path) else file,
        "dataset": dataset,
        "dataset_file": dataset_file,
        "conversations": conversations,
        "protocol": protocol,
        "context_length": context_length,
        "reference": reference.folder if isinstance(reference, Run) else reference,
        "output_path": output,
        "engine": engine,
        **options,
    }
    command = "reference" if keep else "ppl" if reference is None else "kld"
    if not isinstance(model, str | Path):
        return _measured_in_memory(model, command, given, text, quiet=quiet)
    return _measured(_words(command, str(model), given, text), text, quiet=quiet)


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


def generate(
    base: str | Path,
    prompts: str | Path,
    output: str | Path,
    *,
    quiet: bool = False,
    **options: Unpack[GenerateOptions],
) -> dict[str, Any]:
    """Has a base model reply to prompts, writes the conversations to `output`, and returns the record
    beside it (docs/generate.md).

    - `prompts`: a .jsonl, .parquet or text file, or a data set on the hub.

    A call that was killed goes on where it was; one that is done finds its file. Raises ScoremodeError.
    """
    from scoremode.cli.generate import generated
    from scoremode.cli.main import parsed_command, settle_imports
    from scoremode.cli.process.screen import shown

    if unknown := sorted(options.keys() - GenerateOptions.__annotations__.keys()):
        raise TypeError(f"generate() got an unexpected keyword argument {unknown[0]!r}")
    given: dict[str, Any] = {"prompts": prompts, "output": output, **options}
    if (values := given.get("chat_template_kwargs")) is not None:
        given["chat_template_kwargs"] = json.dumps(values)
    named = f"--model={base}" if str(base).startswith("-") else str(base)
    argv = ["generate", named, *flags_of(given)]
    args = parsed_command(argv)
    try:
        with shown(args, hidden=quiet, before=0.0):
            return generated(args, ("scoremode", *argv))
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

    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return ranking(run_folders(folders), by)


def card(runs: "Sequence[Run | str | Path]") -> str:
    """The block of Markdown that `scoremode card` prints for finished runs: a table for each plan, the
    protocol, and the command that measures them again. Raises UsageError, RunFolderError."""
    from scoremode.cli.card import card as card_of
    from scoremode.results.folders.paths import run_folders

    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return card_of(run_folders(folders))


def check(
    run: "Run | str | Path | Sequence[Run | str | Path]",
    *,
    against: str | Path | None = None,
    share: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    model: str | Path | None = None,
    tokenizer: str | Path | None = None,
    reference: str | Path | None = None,
    file: str | Path | Sequence[str | Path] = (),
    fetch: bool = False,
) -> dict[str, Any]:
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
    from scoremode.runs.check.check import check, rerun_of
    from scoremode.runs.check.sources import Sources

    runs = [run] if isinstance(run, Run | str | Path) else run
    files = [file] if isinstance(file, str | Path) else file
    named = {"model": model, "tokenizer": tokenizer, "reference": reference}
    places = {name: None if path is None else str(path) for name, path in named.items()}
    again = None if against is None else str(against)
    return check(
        [one.folder if isinstance(one, Run) else Path(one) for one in runs],
        Sources(**places, files=tuple(map(Path, files)), fetch=fetch),
        rerun_of(again, share, seed, device, trust_remote_code),
    )


def sweep(
    base: str | Path | Sequence[str | Path],
    models: Sequence[str | Path],
    *,
    texts: Sequence[str | Path | Mapping[str, Any]] = (),
    protocols: Sequence[str | Mapping[str, Any]] = (),
    output: str | Path = "runs",
    quiet: bool = False,
    **options: Unpack[Options],
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
    from scoremode.cli.flags.several import sweep_of, swept
    from scoremode.cli.flags.sweep_file import command_lines
    from scoremode.cli.main import command_parser, settle_imports
    from scoremode.cli.process.screen import shown
    from scoremode.cli.sweep import requests_of

    names = [base] if isinstance(base, str | Path) else base
    spec = {"base": [str(name) for name in names], "models": [str(name) for name in models]}
    more = {"texts": texts, "protocols": protocols, "output": str(output), "flags": options}
    lines = command_lines(spec | more, command_parser("kld"))
    args = argparse.Namespace(quiet=quiet)
    try:
        with shown(args, hidden=quiet, before=0.0):
            parsed, pairs = requests_of(lines, args, None)
            parsed[0].quiet = quiet
            outcome = swept(parsed[0], sweep_of(parsed[0], pairs, ()))
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

    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return make.write_report(folders, Path(output), None if plots is None else Path(plots))[0]


def open_run(folder: str | Path) -> Run:
    """The finished run in `folder`, verified as `scoremode show` does it: its numbers are made again
    from its scores, and its record must agree. Raises RunFolderError."""
    from scoremode.results.folders.finished import load_run

    return Run(Path(folder), load_run(Path(folder))[0])


def merge(runs: "Sequence[Run | str | Path]", output: str | Path, *, quiet: bool = False) -> Run:
    """Makes one run of all the shards that `measure(..., shard="i/N")` scored (docs/shards.md), in a
    folder of its own, `output`, which must not be there yet.

    - `runs`: the shards, or folders that hold them; `quiet`: no notices on stderr.

    Raises RunFolderError where they are not all of one run, UsageError for one that is named twice.
    """
    from scoremode.cli.process.screen import shown
    from scoremode.results.shards.merge import merge as merge_shards

    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    args = argparse.Namespace(quiet=quiet)
    command = ("scoremode", "merge", *map(str, folders), f"--output-path={output}")
    with shown(args, hidden=quiet, before=0.0):
        record = merge_shards(folders, Path(output), command=command, notify=args.screen.line)
    return Run(Path(output), record)


# Of a module in memory these are what they are.
_OF_FILES = frozenset(
    {
        "revision", "device", "dtype", "arithmetic", "kv_cache", "kv_scales", "max_memory", "placement",
        "trust_remote_code", "quantization", "tensor_parallel_size", "pipeline_parallel_size",
        "gpu_memory_utilization", "disable_custom_all_reduce", "enforce_eager",
        "max_num_batched_tokens", "head_dtype", "engine_arg", "strict", "shard", "noise_floor",
        "keep_dense", "swap", "head",
    }
)  # fmt: skip


def _measured_in_memory(
    module: "nn.Module", command: str, given: dict[str, Any], text: str | None, *, quiet: bool
) -> Run:
    """The run of a module in memory that `given` flags ask for."""
    from scoremode.runs.models import in_memory

    if given["engine"] != "torch":
        raise UsageError(f"engine={given['engine']!r}: a module in memory computes by itself")
    for name in sorted(_OF_FILES & given.keys()):
        raise UsageError(f"{name}={given[name]!r}: a module in memory is what it is")
    with in_memory(module, given.pop("tokenizer", None)) as asked:
        given["tokenizer"] = asked.tokenizer
        words = _words(command, asked.model, given, text)
        return _measured(words, text, quiet=quiet, asked=asked)


def _words(command: str, model: str, given: Mapping[str, Any], text: str | None) -> list[str]:
    """The command line; a long text stands there by its length."""
    named = f"--model={model}" if model.startswith("-") else model
    words = [command, named, *flags_of(given)]
    if text is not None:
        is_short = len(text) <= _LONGEST_TEXT
        words.append(f"--text={text if is_short else f'<{len(text)} characters>'}")
    return words


def _measured(
    argv: list[str], text: str | None, *, quiet: bool, asked: "InMemory | None" = None
) -> Run:
    """The run that a command line asks for; `text`: that of its `--text`, whole; `asked`: the module in
    memory that its model and tokenizer stand for."""
    from scoremode.cli.flags.run import measured
    from scoremode.cli.main import parsed_command, settle_imports
    from scoremode.cli.process.screen import shown

    args = parsed_command(argv)
    args.text, args.ranks = text, None
    try:
        with shown(args, hidden=quiet, before=0.0):
            request = args.request_of(args, ("scoremode", *argv))
            if asked is not None:
                request = asked.request(request)
            result = measured(request, args)
    finally:
        settle_imports()
    run = Run(result.folder, result.record)
    if request.gates:
        _require(run, request.gates)
    return run


def _require(run: Run, gates: "Gates") -> None:
    if "kld" not in run.record["metrics"]:
        raise UsageError(f"{run.folder}: has no base, which a gate on KLD, ratio or top-1 needs")
    if missed := [str(gate) for gate in gates.judge(run.record) if not gate.met]:
        raise GateNotMet(f"{run.folder}: {'; '.join(missed)}")


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Keywords as flags of a command line; those that are None or False stay away."""
    from scoremode.cli.flags.parser import flag_of

    words = []
    for name, value in options.items():
        flag = flag_of(name)
        if value is True:
            words.append(flag)
        elif value is False and name == "enforce_eager":
            # The one flag whose absence is not its being off.
            words.append("--no-enforce-eager")
        elif isinstance(value, Mapping):
            words.append(f"{flag}={json.dumps(value)}")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [f"{flag}={each}" for each in value]
        elif value is not None and value is not False:
            words.append(f"{flag}={value}")
    return words
