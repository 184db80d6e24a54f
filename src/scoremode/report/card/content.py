"""The content of a model card: a block of Markdown, and what the hub's own formats say of the runs.

The block is a table a plan, and how it came about. `model-index` and `.eval_results/*.yaml` are made
and read back by huggingface_hub's classes, so that what is written is what they mean. A perplexity or
a divergence is no score of a benchmark: it stands with the data set that the text is of, and its
protocol, interval and base stand beside it. A text that is not on the hub has no id there.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from scoremode.errors import escaped
from scoremode.lib.hub import on_hub
from scoremode.report.compare import ranked_rows
from scoremode.report.document import (
    LAYER_BITS,
    Column,
    Table,
    cell_of,
    counted,
    metric_columns,
    metric_of,
    number,
    printable,
    size,
    words,
)
from scoremode.report.facts import (
    blocks_words,
    caveats,
    chat_sentence,
    over_words,
    protocol_words,
)
from scoremode.report.rendering import literal, preformatted, table_markdown
from scoremode.report.runs import HALF_LIFE, half_life_cell
from scoremode.results.labels import base_of
from scoremode.results.metrics import METRIC, METRICS, MetricSpec, Shown, shown
from scoremode.results.record.definition import Done
from scoremode.results.record.model import (
    HttpEngine,
    Reference,
    ReplayEngine,
    TorchEngine,
    VllmEngine,
)
from scoremode.results.record.outcome import Intervals
from scoremode.results.record.section import Metric, decode
from scoremode.results.record.text import Corpus, Protocol
from scoremode.results.statistics.bootstrap import too_few

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, EvalResultEntry


BEGIN, END = "<!-- scoremode card: begin -->", "<!-- scoremode card: end -->"
_SHORT = 12
TOOL = "scoremode"
# WikiText-2, by the name that a corpus of its rows has, wherever they lay.
_WIKITEXT = "wikitext wikitext-2-raw-v1 test"


@dataclass(frozen=True)
class Group:
    """Runs of one plan: `value` as `results.comparison.ranking` has it, the runs' records in its order,
    and the command lines that measure again what is published."""

    value: Mapping[str, Any]
    records: Sequence[Done]
    commands: Sequence[Sequence[str]]

    @property
    def published(self) -> list[tuple[Mapping[str, Any], Done]]:
        """Each run's line of the ranking and its record, without the base's own, which others publish,
        unless it is alone."""
        pairs = list(zip(self.value["runs"], self.records, strict=True))
        return [(row, record) for row, record in pairs if not row["is_base"]] or pairs


def card_block(groups: Sequence[Group]) -> str:
    """The whole block, between comments by which it is found and replaced."""
    parts = [BEGIN, "### Perplexity and KL divergence"]
    for group in groups:
        parts += _group(group)
    return "\n\n".join([*parts, _footer(groups), END]) + "\n"


def _group(group: Group) -> list[str]:
    value = group.value
    parts = [table_markdown(_table(value)), _protocol(value), _computed(group.records)]
    if told := [_item(row["label"], said) for row, said in _told(group)]:
        parts.append("\n".join(told))
    lines = "\n".join(shlex.join(map(escaped, command)) for command in group.commands)
    return [*parts, preformatted(lines, "sh")]


def _table(value: Mapping[str, Any]) -> Table:
    """The ranking, with intervals beside their values: a card is narrow."""
    rows = ranked_rows(value)
    columns = (
        words("model", "label"),
        number(LAYER_BITS, "bits_per_weight", ".3f"),
        size(row["gib"] for row in rows),
        _with_interval("word PPL", ".4f"),
        *(_card_column(metric, own) for metric, own in shown("card")),
        HALF_LIFE,
        words("beside the base", "verdict_base"),
    )
    names = ("bits_per_weight", "gib", "word_ppl", *(metric.key for metric, _ in shown("card")))
    names = (*names, "half_life", "verdict_base")
    # What a base differs from itself by is no news.
    own = ("bits_per_weight", "gib", "word_ppl", "ppl")
    cells = [
        (f"{row['label']} (base)", *(cell_of(row.get(n)) if n in own else None for n in names))
        if row["is_base"]
        else (row["label"], *(_cell(row, name) for name in names))
        for row in rows
    ]
    return Table(columns, tuple(cells)).filled()


def _cell(row: Mapping[str, Any], name: str) -> Any:
    return half_life_cell(row[name]) if name == "half_life" else cell_of(row.get(name))


def _card_column(metric: MetricSpec, own: Shown) -> Column:
    if own.interval:
        return _with_interval(own.heading, own.form, metric.sign)
    if metric.percent is not None:
        return number(own.heading, metric.data_key, own.form)
    return metric_columns(metric, own)[0]


def _with_interval(head: str, form: str, sign: str = "") -> Column:
    def show(metric: Metric) -> str:
        value, ends = f"{sign}{metric.value:{form}}", metric.ci95
        return value if ends is None else f"{value} [{ends[0]:{form}}, {ends[1]:{form}}]"

    return Column(head, None, show)


def _protocol(value: Mapping[str, Any]) -> str:
    """Protocol, text and base in a line, with the digits by which they are known."""
    protocol, corpus = decode(value["protocol"], Protocol), decode(value["corpus"], Corpus)
    plan = value["plan"]
    text = literal(printable(corpus.name))
    said = (
        f"Protocol {literal(printable(protocol.name))}: {_windows(protocol, corpus)}; "
        f"{over_words(plan['scored'], plan['windows'])} of {text} "
        f"(text {_short(corpus.text.sha256)}, plan {_short(plan['sha256'])})."
    )
    if value["reference"]:
        base = _base(decode(value["reference"], Reference))
        said += (
            f" KLD: mean KL(base‖model) of the next token over the whole vocabulary, in nats, "
            f"against {literal(printable(base))}."
        )
    blocks = decode(value["intervals"], Intervals)
    if any(run["ppl"]["ci95"] is not None for run in value["runs"]):
        said += (
            " In brackets: 95 % intervals, by a paired bootstrap, the same for all models, over "
            f"{blocks_words(blocks, protocol)}."
        )
    elif blocks.blocks is not UNSET:
        said += (
            " No 95 % intervals, so a small difference may be chance: "
            f"{too_few(blocks.blocks, blocks.block_length)}."
        )
    return said


def _windows(protocol: Protocol, corpus: Corpus) -> str:
    if corpus.conversations:
        return chat_sentence(protocol, corpus.conversations)
    if protocol.text == "pages":
        return f"whole pages, {protocol.context_length} tokens read at a time"
    return (
        f"windows of {protocol.context_length} tokens every {protocol.stride}, "
        f"{literal(printable(protocol.scored))} targets"
    )


def _computed(records: Sequence[Done]) -> str:
    """Names the engines, dtypes, arithmetics and devices that computed the runs."""
    engines = [record.engine for record in records]
    names = list(map(_engine_words, engines))
    if all(isinstance(engine, HttpEngine) for engine in engines):
        return f"Computed by {_either(names)}, which says nothing of dtype and device."
    return (
        f"Computed by {_either(names)} in {_either(e.dtype for e in engines)}, arithmetic "
        f"{_either(e.arithmetic for e in engines)}, on "
        f"{_either(e.device.name for e in engines)}."
        f"{_sharded(records)}"
    )


def _engine_words(engine: TorchEngine) -> str:
    if isinstance(engine, HttpEngine):
        version = "" if engine.version is None else f" {engine.version}"
        return f"a {engine.server}{version} server"
    if isinstance(engine, ReplayEngine):
        by = (engine.replayed.engine or {}).get("engine", "llama.cpp")
        return f"scoremode from kept predictions of {by}"
    return f"vLLM {engine.vllm}" if isinstance(engine, VllmEngine) else "scoremode's torch engine"


def _sharded(records: Sequence[Done]) -> str:
    """A sentence on merged runs: how many shards they were scored in; their command measures all at
    once."""
    cut = [len(record.merged.shards) for record in records if record.merged]
    if not cut:
        return ""
    which = "Scored" if len(cut) == len(records) else f"{counted(len(cut), 'run')} of them scored"
    numbers = " or ".join(f"{n}" for n in dict.fromkeys(cut))
    return (
        f" {which} in {numbers} shards (`--shard i/N`) that `scoremode merge` joined: the same "
        "scores to the bit as by the one command."
    )


def _either(found: Iterable[str]) -> str:
    return " or ".join(literal(printable(one)) for one in dict.fromkeys(found))


def _told(group: Group) -> list[tuple[Mapping[str, Any], str]]:
    """The caveats of each run that has any."""
    return [
        (row, f"{name.lower()}: {text}")
        for row, record in zip(group.value["runs"], group.records, strict=True)
        for name, text in caveats(record)
    ]


def _item(model: str, said: str) -> str:
    return f"- {literal(printable(model))}: {literal(escaped(said))}"


def _footer(groups: Sequence[Group]) -> str:
    versions = sorted({r.versions["scoremode"] for g in groups for r in g.records if r.versions})
    records = [_short(r.sha256) for g in groups for r in g.records if r.sha256]
    told = f"; records {', '.join(records)}" if records else ""
    return f"<sub>Measured with scoremode {', '.join(map(literal, versions))}{told}.</sub>"


def _short(sha256: str) -> str:
    return literal(printable(str(sha256)[:_SHORT]))


@dataclass(frozen=True)
class _Dataset:
    """A data set as the hub has it; `id` None for a text that is not there."""

    id: str | None
    name: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None


def results_of(groups: Sequence[Group], source_of: Mapping[str, str]) -> "list[EvalResult]":
    """An `EvalResult` a metric and run; `source_of`: a run's folder → the address of its record."""
    from huggingface_hub import EvalResult

    found = []
    for row, record in _runs(groups):
        data, url = _dataset(record.corpus), source_of.get(row["folder"])
        for spec in METRICS:
            if spec.hub is None:
                continue
            kind, title = spec.hub
            if (metric := metric_of(row[spec.key])) is None:
                continue
            label = f"{title}, {escaped(row['label'])}"
            found.append(
                EvalResult(
                    task_type="text-generation",
                    task_name="Text Generation",
                    dataset_type=data.id or "custom",
                    dataset_name=data.name,
                    dataset_config=data.config,
                    dataset_split=data.split,
                    dataset_revision=data.revision,
                    metric_type=kind,
                    metric_name=label,
                    metric_value=metric.value,
                    metric_args=_arguments(record, metric, against=spec.base),
                    verified=False,
                    source_name=None if url is None else _version(record),
                    source_url=url,
                )
            )
    return found


def model_index(name: str, results: "Sequence[EvalResult]") -> list[dict[str, Any]]:
    """The `model-index` of a README. Raises ValueError where the hub's classes read something else."""
    from huggingface_hub.repocard_data import (
        eval_results_to_model_index,
        model_index_to_eval_results,
    )

    index: list[dict[str, Any]] = [{"name": name, "results": []}]
    # One call would give all results of a data set the first one's source.
    for url in dict.fromkeys(result.source_url for result in results):
        (part,) = eval_results_to_model_index(name, [r for r in results if r.source_url == url])
        index[0]["results"] += part["results"]
    _, read = model_index_to_eval_results(index)
    if sorted(map(repr, read)) != sorted(map(repr, results)):
        raise ValueError("the hub's classes read another model-index than they wrote")
    return index


def entry_files(groups: Sequence[Group], source_of: Mapping[str, str]) -> dict[str, str]:
    """Path in the repository → YAML, a file a run whose text is a data set on the hub."""
    files = {}
    for row, record in _runs(groups):
        data = _dataset(record.corpus)
        if data.id is None:
            continue
        entries = _entries(row, record, data, source_of.get(row["folder"]))
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", row["label"]).strip("-.") or "model"
        plan = record.plan.sha256[:8]
        files[f".eval_results/{TOOL}-{safe}-{plan}.yaml"] = entries_file(entries)
    return files


def entries_file(entries: "list[EvalResultEntry]") -> str:
    """The YAML of entries. Raises ValueError where the hub's classes read others."""
    import yaml
    from huggingface_hub import eval_result_entries_to_yaml, parse_eval_result_entries
    from huggingface_hub.utils import yaml_dump

    text = yaml_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    if parse_eval_result_entries(yaml.safe_load(text)) != entries:
        raise ValueError("the hub's classes read other entries than they wrote")
    return text


def _entries(
    row: Mapping[str, Any],
    record: Done,
    data: _Dataset,
    url: str | None,
) -> "list[EvalResultEntry]":
    from huggingface_hub import EvalResultEntry

    assert data.id is not None
    found = []
    for name in ("ppl", "kld"):
        if (metric := metric_of(row[name])) is None:
            continue
        ends = metric.ci95
        kind, title = METRIC[name].hub or ("", "")
        notes = [f"{title} of {escaped(row['label'])}"]
        notes += (
            [f"no interval: {record.metrics[name].note}"]
            if ends is None
            else [f"95 % [{ends[0]:.6g}, {ends[1]:.6g}]"]
        )
        notes += [f"protocol {escaped(protocol_words(record.protocol))}", f"n = {metric.n}"]
        if name == "kld" and record.reference:
            notes.append(f"base {escaped(_base(record.reference))}")
        found.append(
            EvalResultEntry(
                dataset_id=data.id,
                task_id=kind,
                value=metric.value,
                dataset_revision=data.revision,
                date=record.finished or None,
                source_url=url,
                source_name=None if url is None else _version(record),
                notes="; ".join(notes),
            )
        )
    return found


def _runs(groups: Sequence[Group]) -> list[tuple[Mapping[str, Any], Done]]:
    """Each published run's line of the ranking, and its record."""
    return [pair for group in groups for pair in group.published]


def _dataset(corpus: Corpus) -> _Dataset:
    source, name = corpus.source or "", corpus.name
    parts = name.split(" ")
    config, split = (parts[1] if len(parts) > 2 else None), (parts[-1] if parts[1:] else None)
    if found := on_hub(source):
        repo, commit = found
        return _Dataset(repo, name, config, split, commit or None)
    if name == _WIKITEXT and corpus.rows is not None:
        return _Dataset("Salesforce/wikitext", name, config, split)
    return _Dataset(None, escaped(name))


def _arguments(record: Done, metric: Metric, *, against: bool) -> dict[str, Any]:
    """The arguments that a metric depends on: tool, protocol, text, plan, and base."""
    arguments = {
        "tool": _version(record),
        "protocol": escaped(protocol_words(record.protocol)),
        "text_sha256": record.corpus.text.sha256,
        "plan_sha256": record.plan.sha256,
        "n": metric.n,
    }
    if metric.ci95 is not None:
        arguments["ci95"] = list(metric.ci95)
    if against and record.reference:
        arguments["base"] = escaped(_base(record.reference))
    return arguments


def _base(reference: Reference) -> str:
    return base_of(reference).name


def _version(record: Done) -> str:
    assert record.versions
    return f"{TOOL} {escaped(record.versions['scoremode'])}"
