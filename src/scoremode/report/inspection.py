"""Documents of what exists before a score does: a checkpoint, a plan, generated conversations."""

from collections.abc import Iterable, Mapping
from typing import Any

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Table,
    counted,
    data,
    number,
    printable,
)
from scoremode.report.facts import (
    bits,
    conversation_rows,
    left_out_rows,
    protocol_words,
    template_rows,
    text_words,
)
from scoremode.report.groups import group_counts
from scoremode.results.comparison.ranking import gib_of
from scoremode.results.record.section import decode
from scoremode.results.record.text import Corpus, Plan, Protocol
from scoremode.results.statistics.bootstrap import WHOLE

# Kinds of modules that are named.
_KINDS = 16


def inspect_document(value: Mapping[str, Any]) -> Document:
    """The document of a checkpoint: its contents, what would run, and what would be refused."""
    parts, formats = [Facts(tuple(_facts(value)))], _formats_table(value)
    if value["formats"]:
        parts += [formats, Facts(tuple(_formats(value["formats"])))]
    if value["refusals"]:
        parts.append(Facts(tuple(_refusals(value["refusals"]))))
    return Document(tuple(parts), formats)


def _formats_table(value: Mapping[str, Any]) -> Table:
    """A line a format, in data behind what is of the whole; of a checkpoint without any that alone."""
    both = value["bits_per_weight"]
    whole = {
        "model": value["source"],
        "parameters": value["parameters"],
        "size_gib": gib_of(value),
        "bits_per_weight_body": both["body"],
        "bits_per_weight_file": both["file"],
    }
    columns = (
        *map(data, whole),
        Column("format", "format"),
        number("modules", "modules", ","),
        number("weights", "format_parameters", ",", 7),
        number("bits", "format_bits_per_weight", ".3f", 8),
        Column("inputs", "inputs"),
    )
    rows = [
        (*whole.values(), label, f["modules"], f["parameters"], f["bits_per_weight"],
         f["inputs"] or "as they are")
        for label, f in value["formats"].items()
    ]  # fmt: skip
    return Table(columns, tuple(rows) or ((*whole.values(), None, None, None, None, None),))


def _facts(value: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "model", value["source"]
    architectures = printable(", ".join(value["architectures"])) or "not named"
    yield "architecture", f"{architectures} ({printable(value['model_type'] or 'no model_type')})"
    if computed := value["computed_by"]:
        alone = ", text alone: no images, no sound" if computed["text_alone"] else ""
        yield "computed by", f"transformers' {printable(computed['class'])}{alone}"
    yield "layers", f"{_count(value['layers'])} of hidden size {_count(value['hidden_size'])}"
    yield "context", f"{value['positions']:,} positions" if value["positions"] else "no limit given"
    yield "vocabulary", _vocabulary(value)
    tied = {True: "tied to the head", False: "not tied to the head"}
    yield "embeddings", tied.get(value["tied_embeddings"], "not said whether tied to the head")
    yield "dtype", printable(value["dtype"] or "not said")
    parameters, quantized = value["parameters"], value["quantized_parameters"]
    if parameters is None:
        yield "parameters", "unknown: not all of it can be decoded"
    else:
        share = f"of them {quantized / parameters:.1%}" if quantized else "none"
        yield "parameters", f"{parameters:,}, {share} quantized"
    if value["by_config"] is None:
        yield "size", f"{_size(value)} in {counted(value['weight_files'], 'file')}"
    elif parameters is not None:
        yield "size", f"about {_size(value)}, by the shapes that the config gives"
    yield "bits per weight", "unknown" if parameters is None else _bits(value)
    cache = value["kv_cache_declared"]
    applied = f"declared {cache}: not applied, but with --kv-cache as-declared"
    yield "KV cache", applied if cache else "not quantized"
    if value["arithmetic"] is None:
        would = "not at all, for what is refused"
    elif reason := value["runs"]["reason"]:
        would = f"not at all: {reason}"
    else:
        would = (
            f"arithmetic {value['arithmetic']}, in {value['compute_dtype']} on {value['device']}"
        )
    yield "would run", would
    if by_config := value["by_config"]:
        untold = by_config["untold"]
        also = f"; its tensors tell {untold}" if untold else ""
        yield "known from", f"the config alone: no tensor was seen{also}"


def _bits(value: Mapping[str, Any]) -> str:
    both = value["bits_per_weight"]
    return bits(both["body"], both["file"], value.get("not_decoded"))


def _size(value: Mapping[str, Any]) -> str:
    gib = gib_of(value) or 0.0
    return f"{gib * 1024:.2f} MiB" if gib < 0.1 else f"{gib:.3f} GiB"


def _vocabulary(value: Mapping[str, Any]) -> str:
    v = value["vocabulary"]
    text = f"config {_count(v['config'])}, tokenizer {_count(v['tokenizer'])}"
    if v["head"] not in (None, v["config"]):
        text += f", head {_count(v['head'])}"
    notes = [note for note in (v["note"], value["tokenizer_problem"]) if note]
    return ": ".join([text, *notes])


def _formats(formats: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for label, f in formats.items():
        names = [(printable(k), n) for k, n in f["kinds"].items()]
        kinds = ", ".join(f"{k} ×{n:,}" if n > 1 else k for k, n in names[:_KINDS])
        if len(names) > _KINDS:
            kinds += f", and {len(names) - _KINDS} other kinds"
        groups = printable(" and ".join(f["groups"]))
        yield label, f"{kinds} ({groups})" if groups else kinds
        for run in f["runs"]:
            if run["product"] is None:
                how = "decoded, multiplied as dense weights are"
            else:
                how = f"{'native' if run['native'] else 'emulated'} product: {run['product']}"
            yield "", f"{run['arithmetic']}: {how} (×{run['modules']:,})"


def _refusals(refusals: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    for refusal in refusals:
        count = refusal["modules"]
        name = "refused" if count is None else f"refused ×{count:,}"
        also = f", and {count - 1:,} more" if count is not None and count > 1 else ""
        yield name, f"{refusal['reason']}{also}"


def _count(n: int | None) -> str:
    return "unknown" if n is None else f"{n:,}"


def plan_document(value: Mapping[str, Any]) -> Document:
    """A plan's counts and hashes."""
    plan, tokenizer = decode(value["plan"], Plan), value["tokenizer"]
    corpus, protocol = decode(value["corpus"], Corpus), decode(value["protocol"], Protocol)
    if plan.stream_bos is None:
        bos = "none added"
    else:
        bos = f"id {plan.stream_bos} at the start"
        if plan.window_bos is not None:
            bos += ", and over the first token of every window"
    facts = Facts(
        (
            ("protocol", protocol_words(protocol)),
            ("text", text_words(corpus)),
            ("text sha256", corpus.text.sha256),
            ("tokenizer", f"{tokenizer['source']}, {tokenizer['size']:,} ids"),
            ("BOS", bos),
            ("tokens", f"{plan.tokens:,}"),
            ("windows", f"{plan.windows:,}"),
            ("targets", f"{plan.scored:,} scored tokens, {plan.unique:,} unique"),
            *group_counts(plan),
            *conversation_rows(corpus),
            *template_rows(corpus),
            *left_out_rows(protocol),
            *_dropped_tail(plan, protocol),
            ("intervals", _intervals(value["intervals"])),
            ("tokens sha256", plan.tokens_sha256),
            ("plan sha256", plan.sha256),
        )
    )
    plain = {
        "protocol": protocol.name,
        "context_length": protocol.context_length,
        "stride": protocol.stride,
        "text": corpus.name,
        "text_bytes": corpus.text.bytes,
        "text_sha256": corpus.text.sha256,
        "tokenizer": tokenizer["source"],
        "ids": tokenizer["size"],
        "tokens": plan.tokens,
        "windows": plan.windows,
        "scored": plan.scored,
        "unique": plan.unique,
        "stream_bos": plan.stream_bos,
        "window_bos": plan.window_bos,
        "tokens_sha256": plan.tokens_sha256,
        "plan_sha256": plan.sha256,
    }
    return Document((facts,), Table(tuple(map(data, plain)), (tuple(plain.values()),)))


def _intervals(found: Mapping[str, Any]) -> str:
    """Whether there will be intervals, as `planned_blocks` says it."""
    if found["note"]:
        return found["note"]
    if (length := found["block_length"]) == WHOLE:
        return f"from {found['blocks']:,} conversations, pages or questions, each whole"
    return f"from at most {found['blocks']:,} blocks of at least {length:,} tokens"


def _dropped_tail(plan: Plan, protocol: Protocol) -> list[tuple[str, str]]:
    """A row on the tokens behind the last window, where that alone is why no window has them."""
    end = (plan.windows - 1) * protocol.stride + protocol.context_length
    is_cut = plan.windows == protocol.max_windows or protocol.stop_when
    if protocol.tail not in ("drop", "drop-exact") or is_cut or end >= plan.tokens:
        return []
    exact = " or fits exactly" if protocol.tail == "drop-exact" else ""
    left = counted(plan.tokens - end, "token")
    return [
        (
            "left out",
            f"{left} at the end (the protocol drops a last window that is not full{exact})",
        )
    ]


def generation_document(record: Mapping[str, Any]) -> Document:
    """The document of a record of `scoremode generate`: its replies, how they were sampled, how
    they ended."""
    counts, sampling = record["counts"], record["sampling"]
    row = {"file": record["output"]["name"], "base": record["base"]["source"], **counts, **sampling}
    table = Table(tuple(map(data, row)), (tuple(row.values()),))
    return Document((Facts(tuple(_generation_facts(record))),), table)


def _generation_facts(record: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    counts, prompts, output = record["counts"], record["prompts"], record["output"]
    yield "file", f"{printable(output['name'])}, sha256 {output['sha256'][:12]}…"
    yield "base", printable(record["base"]["source"])
    dropped = prompts["dropped_replies"]
    own = f", of which {dropped:,} had a reply that was left out" if dropped else ""
    yield "prompts", f"{prompts['prompts']:,} of {printable(prompts['name'])}{own}"
    yield "sampled", _sampled(record["sampling"])
    yield "by", _engine(record)
    yield "replies", f"{counts['replies']:,}, {counts['tokens']:,} tokens"
    yield "", f"{counts['ended']:,} ended by the model, {counts['cut']:,} cut at the limit"
    if counts["respelled"]:
        yield "", f"{counts['respelled']:,} with generated_ids: the tokenizer's would be others"
    if counts["left_out"]:
        yield "left out", f"{counts['left_out']:,}, which don't read back as the tokens generated"
    score = " --score completion" if prompts["with_history"] else ""
    yield (
        "score it",
        f"scoremode kld QUANT --reference BASE --conversations {output['name']}{score}",
    )
    if score:
        yield "", f"{prompts['with_history']:,} prompts have turns that the base did not say"


def _sampled(sampling: Mapping[str, Any]) -> str:
    if sampling["temperature"] == 0:
        return f"the likeliest token, at most {sampling['max_new_tokens']:,}"
    words = [f"temperature {sampling['temperature']:g}"]
    if sampling["top_k"]:
        words.append(f"top-k {sampling['top_k']}")
    if sampling["top_p"] < 1:
        words.append(f"top-p {sampling['top_p']:g}")
    words.append(f"at most {sampling['max_new_tokens']:,} tokens")
    if sampling["samples"] > 1:
        words.append(f"{sampling['samples']} times each")
    return ", ".join([*words, f"seed {sampling['seed']}"])


def _engine(record: Mapping[str, Any]) -> str:
    engine, versions = record["engine"], record["versions"]
    if engine["engine"] == "vllm":
        return f"vLLM {engine['vllm']} in {engine['dtype']}"
    where = printable(engine["device"]["name"])
    return f"transformers {versions['transformers']} in {engine['dtype']} on {where}"
