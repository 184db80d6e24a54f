"""The Markdown that an author puts into a model card: a table a plan, and how it came about."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scoremode.report.compare import ranked_rows
from scoremode.report.conversations import chat_sentence
from scoremode.report.forms.document import Column, Table, number, size, words
from scoremode.report.forms.markdown import literal, preformatted, table_markdown
from scoremode.report.layout import counted, escaped, printable
from scoremode.report.table import blocks_words, caveats
from scoremode.results.comparison.rows import short_name

__all__ = ["BEGIN", "END", "Group", "card_block"]

BEGIN, END = "<!-- scoremode card: begin -->", "<!-- scoremode card: end -->"
_SHORT = 12


@dataclass(frozen=True)
class Group:
    """Runs of one plan: `value` as `results.comparison.ranking` has it, the runs' records in its order,
    and the command lines that measure again what is published."""

    value: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    commands: Sequence[Sequence[str]]

    @property
    def published(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
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
    if told := [_item(row["model"], said) for row, said in _told(group)]:
        parts.append("\n".join(told))
    lines = "\n".join(shlex.join(map(escaped, command)) for command in group.commands)
    return [*parts, preformatted(lines, "sh")]


def _table(value: Mapping[str, Any]) -> Table:
    """The ranking, with intervals beside their values: a card is narrow."""
    rows = ranked_rows(value)
    columns = (
        words("model", "model"),
        number("bits/weight", "bits_per_weight", ".3f"),
        size(row["gib"] for row in rows),
        _with_interval("word PPL", ".4f"),
        _with_interval("PPL", ".4f"),
        _with_interval("PPL / base", ".4f"),
        _with_interval("KLD (nats)", ".4g"),
        number("KLD p99", "kld_p99_nats", ".4g"),
        Column("same top-1", "top1", lambda metric: f"{metric['value']:.2%}"),
    )
    names = ("bits_per_weight", "gib", "word_ppl", "ppl", "ppl_ratio", "kld", "kld_p99", "top1")
    # What a base differs from itself by is no news.
    own = ("bits_per_weight", "gib", "word_ppl", "ppl")
    cells = [
        (f"{row['model']} (base)", *(row.get(n) if n in own else None for n in names))
        if row["is_base"]
        else (row["model"], *(row.get(n) for n in names))
        for row in rows
    ]
    return Table(columns, tuple(cells)).filled()


def _with_interval(head: str, form: str) -> Column:
    def show(metric: Mapping[str, Any]) -> str:
        value, ends = f"{metric['value']:{form}}", metric["ci95"]
        return value if ends is None else f"{value} [{ends[0]:{form}}, {ends[1]:{form}}]"

    return Column(head, None, show)


def _protocol(value: Mapping[str, Any]) -> str:
    """Protocol, text and base in a line, with the digits by which they are known."""
    protocol, corpus, plan = value["protocol"], value["corpus"], value["plan"]
    text = literal(printable(corpus["name"]))
    said = (
        f"Protocol {literal(printable(protocol['name']))}: {_windows(protocol, corpus)}; "
        f"{counted(plan['scored'], 'token')} in "
        f"{counted(plan['windows'], 'window')} of {text} "
        f"(text {_short(corpus['text']['sha256'])}, plan {_short(plan['sha256'])})."
    )
    if reference := value["reference"]:
        checkpoint = reference.get("checkpoint") or {}
        base = short_name(str(checkpoint.get("source") or reference["source"]))
        said += (
            f" KLD: mean KL(base‖model) of the next token over the whole vocabulary, in nats, "
            f"against {literal(printable(base))}."
        )
    if any(run["ppl"]["ci95"] is not None for run in value["runs"]):
        said += (
            " In brackets: 95 % intervals, by a paired bootstrap, the same for all models, over "
            f"{blocks_words(value['intervals'], protocol)}."
        )
    return said


def _windows(protocol: Mapping[str, Any], corpus: Mapping[str, Any]) -> str:
    if (chats := corpus.get("conversations")) is not None:
        return chat_sentence(protocol, chats)
    if protocol.get("text") == "pages":
        return f"whole pages, {protocol['context_length']} tokens read at a time"
    return (
        f"windows of {protocol['context_length']} tokens every {protocol['stride']}, "
        f"{literal(printable(protocol['scored']))} targets"
    )


def _computed(records: Sequence[Mapping[str, Any]]) -> str:
    """What computed the runs; all there are where they differ."""
    engines = [record["engine"] for record in records]
    names = [
        f"vLLM {e['vllm']}" if e.get("engine") == "vllm" else "scoremode's torch engine"
        for e in engines
    ]
    return (
        f"Computed by {_either(names)} in {_either(e['dtype'] for e in engines)}, arithmetic "
        f"{_either(e['arithmetic'] for e in engines)}, on "
        f"{_either(e['device']['name'] for e in engines)}."
        f"{_sharded(records)}"
    )


def _sharded(records: Sequence[Mapping[str, Any]]) -> str:
    """How runs that were merged of shards were cut; their command measures all at once."""
    cut = [len(record["merged"]["shards"]) for record in records if "merged" in record]
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
    """What the numbers don't contain, of each run that says so."""
    return [
        (row, f"{name.lower()}: {text}")
        for row, record in zip(group.value["runs"], group.records, strict=True)
        for name, text in caveats(record)
    ]


def _item(model: str, said: str) -> str:
    return f"- {literal(printable(model))}: {literal(escaped(said))}"


def _footer(groups: Sequence[Group]) -> str:
    versions = sorted({str(r["versions"]["scoremode"]) for g in groups for r in g.records})
    records = [_short(r["sha256"]) for g in groups for r in g.records if "sha256" in r]
    told = f"; records {', '.join(records)}" if records else ""
    return f"<sub>Measured with scoremode {', '.join(map(literal, versions))}{told}.</sub>"


def _short(sha256: str) -> str:
    return literal(printable(str(sha256)[:_SHORT]))
