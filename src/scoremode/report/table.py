"""Runs and plans as small text tables."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.calibration import calibration_rows
from scoremode.report.conversations import chat_words, conversation_rows, template_rows
from scoremode.report.forms.document import Document, Facts, Table, data
from scoremode.report.forms.text import document_text
from scoremode.report.groups import group_counts, group_parts
from scoremode.report.layout import counted, interval, printable, without_interval
from scoremode.report.runs import runs_table
from scoremode.results.comparison.rows import base_row, run_row, short_name
from scoremode.results.record.checks import unlike_dtypes

__all__ = [
    "bits",
    "blocks_words",
    "caveats",
    "headline_rows",
    "measured_rows",
    "page_rows",
    "place_rows",
    "plan_document",
    "plan_table",
    "protocol_words",
    "ran_rows",
    "reference_document",
    "reference_table",
    "run_data",
    "run_document",
    "run_table",
    "text_words",
]

# Metrics of few targets, which may have no interval where the others do.
_OF_FEW = ("confident_flips", "halved", "kld_p99", "kld_p999")
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def run_table(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> str:
    """The result of one run as text."""
    return document_text(run_document(record, folder, verbose=verbose))


def run_data(record: Mapping[str, Any], folder: Path) -> Table:
    """The run as a line of a table, its base as another."""
    base, name = base_row(record), short_name(str(record["checkpoint"]["source"]))
    return runs_table([*([base] if base else []), run_row(record, folder, name)])


def run_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The result of one run; `verbose`: with all that made it, behind."""
    ppl = record["metrics"]["ppl"]
    first = [
        *page_rows(record),
        ("PPL", f"{ppl['value']:.6f}   {interval(ppl)}"),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    groups = [*group_parts(record, "label"), *group_parts(record, "depth")]
    shown = Facts(tuple(first), frozenset(("PPL", "model")))
    if not verbose:
        return Document((shown, *groups), run_data(record, folder))
    details = [*measured_rows(record), *ran_rows(record)]
    # Where the tokenizer tells how many bytes its tokens are.
    if found := record["metrics"].get("bits_per_byte"):
        # Of pages, whose own bytes are others, the protocol has one as well.
        name = "bits per detokenized byte" if "pages" in record else "bits per byte"
        details.insert(0, (name, f"{found['value']:.6f}   {interval(found)}"))
    groups += group_parts(record, "turn")
    return Document((shown, *groups, Facts(tuple(details))), run_data(record, folder))


def headline_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on what a result is of: the model, how many tokens of which text, and what it does not
    contain."""
    return [
        ("model", _model(record["checkpoint"])),
        ("over", _over(record)),
        *_stopped(record),
        ("protocol", protocol_words(record["protocol"])),
        *conversation_rows(record["corpus"]),
        *_left_out(record["protocol"]),
        *without_interval(m for k, m in record["metrics"].items() if k not in _OF_FEW),
        *caveats(record),
    ]


def page_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on the perplexities a word and a byte of whole pages; none of another run."""
    if (pages := record.get("pages")) is None:
        return []
    rows, metrics = [], pages["metrics"]
    for name in ("word perplexity", "byte perplexity", "bits per byte"):
        key = name.replace(" ", "_")
        for of, metric in (("", metrics[key]), ("base ", metrics.get(f"{key}_base"))):
            if metric is not None:
                rows.append((of + name, f"{metric['value']:.6f}   {interval(metric)}"))
    prefix = record["requests"]["prefix"]
    before = "" if prefix is None else f", each behind {prefix['is']} ({prefix['token']})"
    counts = f"{counted(pages['pages'], 'page')} of {counted(pages['words'], 'word')}"
    return [*rows, ("pages", f"{counts} and {counted(pages['bytes'], 'byte')}{before}")]


def _stopped(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Tells of a run with a rule to stop by how much of the text it took, and what that says of all."""
    found = record.get("stopping")
    if found is None:
        return []
    if found["after"] == found["of"]:
        return [("stopped", f"not: {found['rule']} took all {counted(found['of'], 'window')}")]
    low, high = found["looks"][-1]["ci95"]
    name = found["rule"].partition("±")[0].upper()
    return [
        (
            "stopped",
            f"by {found['rule']} after {found['after']:,} of {counted(found['of'], 'window')}, drawn "
            f"with seed {found['seed']}: all would give {name} {low:.5g} to {high:.5g} (95 %)",
        )
    ]


def _left_out(protocol: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The tokens that lie between windows that begin further apart than they are long."""
    length, stride = protocol["context_length"], protocol["stride"]
    if stride <= length:
        return []
    return [
        (
            "left out",
            f"{stride - length:,} of every {stride:,} tokens of the text, between windows; "
            f"--stride {length} scores them, too",
        )
    ]


def place_rows(folder: Path, *, verbose: bool) -> list[tuple[str, str]]:
    """Rows on where the record is, and how to see more than what is shown."""
    rows = [("record", str(folder / "record.json"))]
    return rows if verbose else [*rows, ("more", f"scoremode show {shlex.quote(str(folder))} -v")]


def _model(checkpoint: Mapping[str, Any]) -> str:
    """Such as `models/x (W4A16 g32, 4.500 bits a weight)`."""
    formats = ", ".join(checkpoint["formats"])
    body = checkpoint["bits_per_weight"]["body"]
    return f"{checkpoint['source']} ({formats}" + (f", {body:.3f} bits/weight)" if body else ")")


def _over(record: Mapping[str, Any]) -> str:
    plan, n = record["plan"], record["plan"]["scored"]
    often = "" if plan["unique"] == n else f" ({plan['unique']:,} different ones)"
    windows = counted(plan["windows"], "window")
    return f"{counted(n, 'token')}{often} in {windows} of {text_words(record['corpus'])}"


def reference_table(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> str:
    """The result of a run that was kept as a reference, as text."""
    return document_text(reference_document(record, folder, verbose=verbose))


def reference_document(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False
) -> Document:
    """The result of a run that was kept as a reference."""
    states, head = record["kept"]["states"], record["kept"]["head"]
    size = states["rows"] * states["width"] * _BYTES[states["dtype"]]
    where = "with them" if head["file"] else f"left in {head['checkpoint']['path']}"
    kept = (
        ("states", f"{states['rows']:,} of {states['width']:,} {states['dtype']}, "
                   f"{size / 1e9:.3f} GB"),
        ("head", f"{head['vocabulary']:,} × {head['width']:,} {head['dtype']}, {where}"),
        ("reference", str(folder)),
    )  # fmt: skip
    document = run_document(record, folder, verbose=verbose)
    return Document((*document.parts, Facts(kept)), document.data)


def measured_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on what was measured, and with which arithmetic."""
    engine, checkpoint = record["engine"], record["checkpoint"]
    formats = ", ".join(checkpoint["formats"])
    return [
        *template_rows(record["corpus"]),
        *calibration_rows(record, held_out=True),
        *_blocks(record),
        ("softmax over", f"{engine['vocabulary']:,} entries ({record['protocol']['vocabulary']})"),
        ("arithmetic", f"{engine['arithmetic']} ({formats}), computed in {engine['dtype']}, "
                       f"{engine['attention']} attention"),
        *_products(engine),
        *_vllm(engine),
        ("bits per weight", bits(checkpoint)),
    ]  # fmt: skip


def _blocks(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The blocks that intervals are made of; runs from before blocks were chosen don't tell."""
    found = record.get("intervals")
    return [("intervals from", blocks_words(found, record["protocol"]))] if found else []


def blocks_words(found: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """What `intervals` of a record or of several runs are made of, and how much they cover where they
    are of few conversations."""
    why = {
        "window": "as long as a window",
        "shortest": "the shortest there are",
        "autocorrelation": "by the autocorrelation of the scores",
        "eighth": "an eighth of the text, and less than its autocorrelation asks for",
    }
    if found["rule"] == "conversation":
        texts = {"requests": "question", "pages": "page"}
        what = texts.get(str(protocol.get("text")), "conversation")
        whole = f"{counted(found['blocks'], what)}, resampled whole"
        if (covers := found.get("covers")) is None:
            return whole
        return f"{whole}: so few that 95 % intervals cover {covers:.0%} where a few are far harder"
    words = f"{counted(found['blocks'], 'block')} of {counted(found['block_length'], 'token')}"
    return f"{words}: {why.get(found['rule'], found['rule'])}"


def ran_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on where a run ran, and what it took."""
    engine = record["engine"]
    return [
        ("device", _device(engine)),
        *_merged(record),
        ("peak memory", _memory(record)),
        ("speed", _rate(record)),
        ("seconds", _seconds(record)),
    ]


def _merged(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a merged run how many shards it is of."""
    if (merged := record.get("merged")) is None:
        return []
    shards = merged["shards"]
    runs = ", ".join(printable(str(shard["run"])) for shard in shards[:3])
    more = f" and {len(shards) - 3} more" if len(shards) > 3 else ""
    return [("merged", f"of {counted(len(shards), 'shard')}, whose seconds add up: {runs}{more}")]


def _memory(record: Mapping[str, Any]) -> str:
    """The most that was held; of long windows on a GPU with what was expected, and their chunks."""
    engine, chunk = record["engine"], (record.get("schedule") or {}).get("chunk_tokens")
    said = f"{engine['peak_bytes'] / 2**30:.2f} GiB"
    if "estimated_bytes" in engine and engine["device"]["type"] == "cuda":
        said += f", {engine['estimated_bytes'] / 2**30:.2f} expected"
    return said if chunk is None else f"{said}; long windows in chunks of {chunk:,} tokens"


def _seconds(record: Mapping[str, Any]) -> str:
    """The process's stages from its start on, which add up to what the user waited; and what the two
    that are the engine's were spent on."""
    total = record["seconds"]["total"]
    stages = {name: value for name, value in record["seconds"].items() if name != "total"}
    digits = 2 if total < 100 else 1
    return (
        f"{total:.{digits}f} in all: {_stages(stages, digits)}; engine and score are "
        f"{_stages(_shares(stages, record['engine']['seconds']), digits)}"
    )


def _shares(stages: Mapping[str, float], own: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds that the engine noted, and those it didn't; on a GPU loading overlaps the rest."""
    both = stages.get("engine", 0) + stages.get("score", 0)
    return {**own, "other": max(0.0, both - sum(own.values()))}


def _stages(seconds: Mapping[str, float], digits: int) -> str:
    """The stages that took any time that would be seen."""
    seen = {name: value for name, value in seconds.items() if round(value, digits)}
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in seen.items()) or "none"


def _device(engine: Mapping[str, Any]) -> str:
    """Such as `2 × NVIDIA H200, weights in pinned host memory`."""
    device, several = engine["device"], engine.get("devices", ())
    words = f"{len(several)} × {device['name']}" if several else device["name"]
    if device["threads"]:
        return f"{words}, {counted(device['threads'], 'thread')}{' each' if several else ''}"
    place = engine.get("placement")
    return words if place in (None, "device") else f"{words}, weights in {place}"


def _products(engine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Tells how linears with quantized inputs were multiplied."""
    rows = []
    for p in engine.get("products", ()):
        how = "native" if p["native"] else "emulated"
        rows.append(
            (
                "" if rows else "products",
                f"{how}: {p['product']} ({counted(p['linears'], 'linear')} {p['format']}, inputs "
                f"{p['inputs']})",
            )
        )
    return rows


def _vllm(engine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows that only vLLM has: its version, its kernels, its ranks."""
    if engine.get("engine") != "vllm":
        return []
    kernels = ", ".join(f"{name} ({count})" for name, count in engine["linear"].items())
    ranks = f"{engine['tensor_parallel_size']} tensor, {engine['pipeline_parallel_size']} pipeline"
    return [
        ("vLLM", f"{engine['vllm']}, {engine['runner']} runner, parallel {ranks}"),
        ("kernels", kernels),
        ("logits", "float32" if engine["head_dtype"] == "float32" else engine["dtype"]),
    ]


def caveats(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists what the checkpoint holds or declares and the number does not contain."""
    rows = []
    engine = record["engine"]
    declared = record["checkpoint"]["kv_cache_declared"]
    cache = engine.get("kv_cache_dtype")
    if cache not in (None, "", "auto", engine["dtype"]):
        said = [f"in {cache}", *_cache_scales(engine)]
        if declared:
            said.append(f"declared {declared}")
        rows.append(("KV cache", ", ".join([*said, *_cache_of_base(record)])))
    elif declared is not None:
        rows.append(("KV cache", f"declared {declared}, not applied"))
    if problem := engine.get("problem"):
        rows.append(("WITHOUT PLUGIN", f"vLLM's own prompt_logprobs, since {problem}"))
    if unlike := unlike_dtypes(record):
        rows.append(("OTHER DTYPE", unlike))
    activations = engine.get("activations") or {"declared": None, "ran": None}
    declared, ran = activations["declared"], activations["ran"]
    if declared and ran != "quantized":
        text = f"activations are declared {declared}, and here {ran}"
        rows.append(("LESS THAN DECLARED", text))
    if engine.get("arithmetic") == "llama.cpp":
        text = "llama.cpp's: inputs of linears rounded too, by the weight's type"
        rows.append(("arithmetic", text))
    elif not declared and ran in ("quantized", "mixed"):
        text = f"activations are not declared quantized, and here {ran}"
        rows.append(("MORE THAN DECLARED", text))
    if whole := engine.get("text_alone"):
        rows.append(("text alone", f"the language model of {whole}, without images or sound"))
    if unused := engine["unused_tensors"]:
        rows.append(("not used", f"{counted(len(unused), 'tensor')}, such as {unused[0]}"))
    return rows + calibration_rows(record)


def _cache_scales(engine: Mapping[str, Any]) -> list[str]:
    """Where a cache's static scales are from, if it has any."""
    scales = (engine.get("kv_cache") or {}).get("scales")
    if scales is None:
        return []
    if scales["source"] == "measured":
        tokens = f"{scales['tokens']:,} tokens"
        return [f"scales measured on {counted(scales['windows'], 'window')} of {tokens}"]
    return [f"scales of {printable(scales['source'])}"]


def _cache_of_base(record: Mapping[str, Any]) -> list[str]:
    """What the base's keys and values were in, where the record says it."""
    base = (record.get("reference") or {}).get("engine") or {}
    if "dtype" not in base:
        return []
    cache = base.get("kv_cache_dtype")
    return [f"the base's in {base['dtype'] if cache in (None, '', 'auto') else str(cache)}"]


def plan_table(value: Mapping[str, Any]) -> str:
    """A plan as text."""
    return document_text(plan_document(value))


def plan_document(value: Mapping[str, Any]) -> Document:
    """A plan's counts and hashes."""
    plan, tokenizer = value["plan"], value["tokenizer"]
    if plan["stream_bos"] is None:
        bos = "none added"
    else:
        bos = f"id {plan['stream_bos']} at the start"
        if plan["window_bos"] is not None:
            bos += ", and over the first token of every window"
    facts = Facts(
        (
            ("protocol", protocol_words(value["protocol"])),
            ("text", text_words(value["corpus"])),
            ("text sha256", value["corpus"]["text"]["sha256"]),
            ("tokenizer", f"{tokenizer['source']}, {tokenizer['size']:,} ids"),
            ("BOS", bos),
            ("tokens", f"{plan['tokens']:,}"),
            ("windows", f"{plan['windows']:,}"),
            ("targets", f"{plan['scored']:,} scored, {plan['unique']:,} unique"),
            *group_counts(plan),
            *conversation_rows(value["corpus"]),
            *template_rows(value["corpus"]),
            *_left_out(value["protocol"]),
            ("tokens sha256", plan["tokens_sha256"]),
            ("plan sha256", plan["sha256"]),
        )
    )
    corpus, protocol = value["corpus"], value["protocol"]
    plain = {
        "protocol": protocol["name"],
        "context_length": protocol["context_length"],
        "stride": protocol["stride"],
        "text": corpus["name"],
        "text_bytes": corpus["text"]["bytes"],
        "text_sha256": corpus["text"]["sha256"],
        "tokenizer": tokenizer["source"],
        "ids": tokenizer["size"],
        "tokens": plan["tokens"],
        "windows": plan["windows"],
        "scored": plan["scored"],
        "unique": plan["unique"],
        "stream_bos": plan["stream_bos"],
        "window_bos": plan["window_bos"],
        "tokens_sha256": plan["tokens_sha256"],
        "plan_sha256": plan["sha256"],
    }
    return Document((facts,), Table(tuple(map(data, plain)), (tuple(plain.values()),)))


def bits(summary: Mapping[str, Any]) -> str:
    """Both bits-per-weight conventions of a checkpoint section."""
    both = summary["bits_per_weight"]
    if both["file"] is None:
        return f"not known: {summary['not_decoded']}"
    body = "none" if both["body"] is None else f"{both['body']:.3f}"
    return f"{body} body, {both['file']:.3f} file"


def _rate(record: Mapping[str, Any]) -> str:
    engine = record["engine"]
    work = sum(v for k, v in engine["seconds"].items() if k != "load")
    tokens = engine["tokens"]
    return f"{tokens / work:,.0f} tokens/s" if work and tokens else "not measured (all resumed)"


def protocol_words(protocol: Mapping[str, Any]) -> str:
    """A protocol in a line."""
    if protocol.get("text") == "conversations":
        return chat_words(protocol)
    if protocol.get("text") in ("pages", "requests"):
        return f"{protocol['name']} ({protocol['context_length']:,} tokens read at a time)"
    return (
        f"{protocol['name']} (windows of {protocol['context_length']} every {protocol['stride']}, "
        f"{protocol['scored']} targets)"
    )


def text_words(corpus: Mapping[str, Any]) -> str:
    """A text's name, size and rule in a line."""
    rows = ""
    if corpus["row_limit"] is not None:
        seed = corpus.get("row_seed")
        which = "first " if seed is None else ""
        # More may be asked for than there are.
        count = min(corpus["row_limit"], corpus["rows"])
        rows = f", {which}{count} of {corpus['rows']} rows"
        if corpus["text"]["rule"] == "pages":
            rows = f", {which}{counted(corpus['row_limit'], 'page')}"
        rows += "" if seed is None else f" drawn by seed {seed}"
    return f"{corpus['name']}{rows}, {corpus['text']['bytes']:,} bytes ({corpus['text']['rule']})"
