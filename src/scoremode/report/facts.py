"""Rows of facts about a run, each a name and a line: what was measured, on which text, how, where."""

import json
import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import UNSET

from scoremode.report.document import (
    counted,
    interval_text,
    printable,
    without_interval,
)
from scoremode.results.comparison.comparable import HELD_OUT
from scoremode.results.labels import base_of, label_of
from scoremode.results.metrics import METRICS
from scoremode.results.record.checks import unlike_dtypes
from scoremode.results.record.definition import Done, ShardDone
from scoremode.results.record.model import (
    Activations,
    HttpEngine,
    Reference,
    ReplayEngine,
    TorchEngine,
    VllmEngine,
)
from scoremode.results.record.outcome import Intervals
from scoremode.results.record.text import Calibration, Conversations, Corpus, Protocol
from scoremode.text.corpus import WIKITEXT2_NAME

Scored = Done | ShardDone
Engine = TorchEngine | VllmEngine
# Metrics of few targets, which may have no interval where the others do.
_OF_FEW = frozenset(metric.key for metric in METRICS if metric.of_few)
_LONG = {"truncate": "cut there", "split": "split", "skip": "left out"}
# As a sentence of a card.
_RULES = {"truncate": "cut", "split": "split into windows", "skip": "left out"}
_SCORED = {
    "assistant": "the assistant's targets",
    "completion": "the last turn's targets",
    "all": "all targets",
}
# Why what an assistant said is no target, by the record's names. Earlier releases counted fewer.
_NOT_SCORED: dict[str, Callable[[int], str]] = {
    "unmarked": lambda n: f"{counted(n, 'turn')} that the chat template doesn't mark as generated",
    "outside": lambda n: f"{counted(n, 'token')} outside the template's marks",
    "prompted": lambda n: f"{counted(n, 'token')} marked, and given by the prompt",
    "straddling": lambda n: f"{counted(n, 'token')} shared with what the model didn't generate",
    "behind": lambda n: f"{counted(n, 'token')} behind the end of a turn",
    "opening": lambda n: f"{counted(n, 'token')} with nothing before",
    "beyond": lambda n: f"{counted(n, 'token')} beyond the context length",
}


def headline_rows(record: Done) -> list[tuple[str, str]]:
    """Rows on the subject of a result: the model, how many tokens of which text, and what the number
    leaves out."""
    return [
        ("model", _model(record)),
        ("over", _over(record)),
        *_stopped(record),
        ("protocol", protocol_words(record.protocol)),
        *conversation_rows(record.corpus),
        *left_out_rows(record.protocol),
        *without_interval(m for k, m in record.metrics.items() if k not in _OF_FEW),
        *caveats(record),
    ]


def page_rows(record: Scored) -> list[tuple[str, str]]:
    """Rows on the perplexities a word and a byte of whole pages; none of another run."""
    if not (pages := record.pages):
        return []
    rows, metrics = [], pages.metrics
    for name in ("word perplexity", "byte perplexity", "bits per byte"):
        key = name.replace(" ", "_")
        for of, metric in (("", metrics[key]), ("base ", metrics.get(f"{key}_base"))):
            if metric is not None:
                rows.append((of + name, f"{metric.value:.6f}   {interval_text(metric)}"))
    assert record.requests
    prefix = record.requests.prefix
    before = "" if prefix is None else f", each behind {prefix.token_kind} ({prefix.token})"
    counts = f"{counted(pages.pages, 'page')} of {counted(pages.words, 'word')}"
    return [*rows, ("pages", f"{counts} and {counted(pages.bytes, 'byte')}{before}")]


def _stopped(record: Scored) -> list[tuple[str, str]]:
    """A row on a run that a rule may have stopped: how much of the text it took, and what all of it
    would give."""
    if not (found := record.stopping):
        return []
    if found.after == found.of:
        return [("stopped", f"not: {found.rule} took all {counted(found.of, 'window')}")]
    low, high = found.looks[-1].ci95 or (math.nan, math.nan)
    name = found.rule.partition("±")[0].upper()
    return [
        (
            "stopped",
            f"by {found.rule} after {found.after:,} of {counted(found.of, 'window')}, drawn "
            f"with seed {found.seed}: all would give {name} {low:.5g} to {high:.5g} (95 %)",
        )
    ]


def left_out_rows(protocol: Protocol) -> list[tuple[str, str]]:
    """The tokens that lie between windows that begin further apart than they are long."""
    length, stride = protocol.context_length, protocol.stride
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


def _model(record: Scored) -> str:
    """The model and its formats, such as `x (W4A16 g32, 4.500 bits/weight of the layers), models/x`."""
    checkpoint, label = record.checkpoint, label_of(record)
    formats, body = ", ".join(checkpoint.formats), checkpoint.bits_per_weight.body
    said = f"{label} ({formats}" + (f", {body:.3f} bits/weight of the layers)" if body else ")")
    return said if label == checkpoint.source else f"{said}, {checkpoint.source}"


def base_words(reference: Reference, *further: str) -> str:
    """A base in a line, such as `SmolLM2 (stored, runs/base)`; `further`: facts in the brackets."""
    label = base_of(reference).name
    where = () if reference.source == label else (printable(reference.source),)
    said = [*([reference.kind] if reference.kind else ()), *where, *further]
    return printable(label) + (f" ({', '.join(said)})" if said else "")


def _over(record: Scored) -> str:
    plan, n = record.plan, record.plan.scored
    often = "" if plan.unique == n else f", {plan.unique:,} different ones"
    return f"{over_words(n, plan.windows, often)} of {text_words(record.corpus)}"


def over_words(targets: int, windows: int, often: str = "") -> str:
    """What was scored: not every token of a window is, its first one never."""
    return f"{counted(targets, 'target')} (scored tokens{often}) in {counted(windows, 'window')}"


def measured_rows(record: Scored) -> list[tuple[str, str]]:
    """Rows on what was measured, and with which arithmetic."""
    engine, checkpoint = record.engine, record.checkpoint
    both = checkpoint.bits_per_weight
    formats = ", ".join(checkpoint.formats)
    return [
        *template_rows(record.corpus),
        *calibration_rows(record, held_out=True),
        *_blocks(record),
        ("softmax over", f"{engine.vocabulary:,} entries ({record.protocol.vocabulary})"),
        ("arithmetic", f"{engine.arithmetic} ({formats}), computed in {engine.dtype}, "
                       f"{engine.attention} attention"),
        *_products(engine),
        *_vllm(engine),
        *_http(engine),
        ("bits per weight", bits(both.body, both.file, checkpoint.not_decoded)),
    ]  # fmt: skip


def _blocks(record: Scored) -> list[tuple[str, str]]:
    """The blocks that intervals are made of; runs from before blocks were chosen don't tell."""
    found = record.intervals
    return [("intervals from", blocks_words(found, record.protocol))] if found else []


def blocks_words(found: Intervals, protocol: Protocol) -> str:
    """The blocks that `intervals` are made of, and how much such intervals cover where they are of few
    conversations."""
    why = {
        "window": "as long as a window",
        "shortest": "the shortest there are",
        "autocorrelation": "by the autocorrelation of the scores",
        "eighth": "an eighth of the text, and less than its autocorrelation asks for",
    }
    if found.rule == "conversation":
        texts = {"requests": "question", "pages": "page"}
        what = texts.get(str(protocol.text), "conversation")
        whole = f"{counted(found.blocks or 0, what)}, resampled whole"
        if not (covers := found.covers):
            return whole
        return f"{whole}: so few that 95 % intervals cover {covers:.0%} where a few are far harder"
    words = f"{counted(found.blocks or 0, 'block')} of {counted(found.block_length, 'token')}"
    return f"{words}: {why.get(str(found.rule), found.rule)}"


def ran_rows(record: Scored) -> list[tuple[str, str]]:
    """Rows on where a run ran, and what it took."""
    engine = record.engine
    return [
        ("device", _device(engine)),
        *_merged(record),
        ("peak memory", _memory(record)),
        ("speed", _rate(record)),
        ("seconds", _seconds(record)),
    ]


def _merged(record: Scored) -> list[tuple[str, str]]:
    """A row on the shards of a merged run."""
    if not (merged := record.merged):
        return []
    shards = merged.shards
    runs = ", ".join(printable(shard.run) for shard in shards[:3])
    more = f" and {len(shards) - 3} more" if len(shards) > 3 else ""
    return [("merged", f"of {counted(len(shards), 'shard')}, whose seconds add up: {runs}{more}")]


def _memory(record: Scored) -> str:
    """The most that was held; of long windows on a GPU with what was expected, and their chunks."""
    engine = record.engine
    if isinstance(engine, HttpEngine):
        return "the server's"
    chunk = record.schedule and record.schedule.chunk_tokens
    said = f"{engine.peak_bytes / 2**30:.2f} GiB"
    if engine.estimated_bytes and engine.device.type == "cuda":
        said += f", {engine.estimated_bytes / 2**30:.2f} expected"
    return f"{said}; long windows in chunks of {chunk:,} tokens" if chunk else said


def _seconds(record: Scored) -> str:
    """The process's stages from its start on, which add up to what the user waited; and what the two
    that are the engine's were spent on."""
    total = record.seconds["total"]
    stages = {name: value for name, value in record.seconds.items() if name != "total"}
    digits = 2 if total < 100 else 1
    return (
        f"{total:.{digits}f} in all: {_stages(stages, digits)}; engine and score are "
        f"{_stages(_shares(stages, record.engine.seconds), digits)}"
    )


def _shares(stages: Mapping[str, float], own: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds that the engine noted, and those it didn't; on a GPU loading overlaps the rest."""
    both = stages.get("engine", 0) + stages.get("score", 0)
    return {**own, "other": max(0.0, both - sum(own.values()))}


def _stages(seconds: Mapping[str, float], digits: int) -> str:
    """The stages that took any time that would be seen."""
    seen = {name: value for name, value in seconds.items() if round(value, digits)}
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in seen.items()) or "none"


def _device(engine: Engine) -> str:
    """The device, such as `2 × NVIDIA H200, weights in pinned host memory`."""
    device, several = engine.device, engine.devices or ()
    words = f"{len(several)} × {device.name}" if several else device.name
    if device.threads:
        return f"{words}, {counted(device.threads, 'thread')}{' each' if several else ''}"
    place = engine.placement
    return words if place in (None, "device") else f"{words}, weights in {place}"


def _products(engine: Engine) -> list[tuple[str, str]]:
    """Rows on the products of linears with quantized inputs."""
    rows = []
    for p in engine.products or ():
        how = "native" if p.native else "emulated"
        rows.append(
            (
                "" if rows else "products",
                f"{how}: {p.product} ({counted(p.linears, 'linear')} {p.format}, inputs "
                f"{p.inputs})",
            )
        )
    return rows


def _vllm(engine: Engine) -> list[tuple[str, str]]:
    """Rows that only vLLM has: its version, its kernels, its ranks."""
    if not isinstance(engine, VllmEngine):
        return []
    kernels = ", ".join(f"{name} ({count})" for name, count in engine.linear.items())
    ranks = f"{engine.tensor_parallel_size} tensor, {engine.pipeline_parallel_size} pipeline"
    return [
        ("vLLM", f"{engine.vllm}, {engine.runner} runner, parallel {ranks}"),
        *_decode(engine),
        ("kernels", kernels),
        ("logits", "float32" if engine.head_dtype == "float32" else engine.dtype),
    ]


def _http(engine: Engine) -> list[tuple[str, str]]:
    """Rows that only a served model has: what the server was found to give."""
    if not isinstance(engine, HttpEngine):
        return []
    probed = engine.probed
    adds = (
        f"; it adds {counted(probed.adds, 'token')} to a text, and none to ids"
        if probed.adds
        else ""
    )
    return [
        ("server gives", f"{probed.gives}, {engine.top} of them asked for"),
        ("aligned", probed.aligned),
        ("its tokenizer", f"{probed.tokenizer}{adds}"),
    ]


def _decode(engine: VllmEngine) -> list[tuple[str, str]]:
    """The row of targets that decode steps predicted, not prefill."""
    if engine.phase is UNSET:
        return []
    graphs = "eager" if engine.cuda_graphs == "NONE" else f"CUDA graphs {engine.cuda_graphs}"
    said = [f"each target by a decode step, {engine.max_num_seqs} windows together", graphs]
    if engine.prefilled_targets:
        said.append(f"{engine.prefilled_targets} targets after a preemption by prefill")
    return [("decode", ", ".join(said))]


def caveats(record: Scored) -> list[tuple[str, str]]:
    """Rows on what the checkpoint holds or declares and the number leaves out."""
    rows = []
    engine = record.engine
    declared = record.checkpoint.kv_cache_declared
    cache = engine.kv_cache_dtype
    if cache not in (None, "", "auto", engine.dtype):
        said = [f"in {cache}", *_cache_scales(engine)]
        if declared:
            said.append(f"declared {declared}")
        rows.append(("KV cache", ", ".join([*said, *_cache_of_base(record)])))
    elif declared is not None:
        rows.append(("KV cache", f"declared {declared}, not applied"))
    if isinstance(engine, ReplayEngine):
        rows.append(("replayed", _replayed(engine)))
    if isinstance(engine, VllmEngine) and engine.problem:
        rows.append(("WITHOUT PLUGIN", f"vLLM's own prompt_logprobs, since {engine.problem}"))
    if unlike := unlike_dtypes(record.document):
        rows.append(("OTHER DTYPE", unlike))
    activations = engine.activations or Activations(declared=None, ran=None)
    declared, ran = activations.declared, activations.ran
    if declared and ran != "quantized":
        text = f"activations are declared {declared}, and here {ran}"
        rows.append(("LESS THAN DECLARED", text))
    if engine.arithmetic == "llama.cpp":
        text = "llama.cpp's: inputs of linears rounded too, by the weight's type"
        rows.append(("arithmetic", text))
    elif not declared and ran in ("quantized", "mixed"):
        text = f"activations are not declared quantized, and here {ran}"
        rows.append(("MORE THAN DECLARED", text))
    if whole := engine.text_alone:
        rows.append(("text alone", f"the language model of {whole}, without images or sound"))
    if unused := engine.unused_tensors:
        rows.append(("not used", f"{counted(len(unused), 'tensor')}, such as {unused[0]}"))
    return rows + calibration_rows(record)


def _replayed(engine: ReplayEngine) -> str:
    """What was scored in place of a model, and how near it is to what the model gave."""
    kept = engine.replayed
    where = printable(kept.source)
    if kept.kind == "llama.cpp":
        return (
            f"llama.cpp's file {where}: 16-bit codes in steps of up to {kept.step_nats:.2g} nats, "
            f"nothing deeper than {kept.reach_nats:.4g} nats below a row's largest; no layer ran"
        )
    by = (kept.engine or {}).get("engine")
    said = f"kept predictions of the {by} engine in {where}: no layer ran"
    if kept.logits != "float32":
        said += f"; logits rounded to {kept.logits} again"
    if (check := kept.check) is None:
        return said
    bits = "to the bit" if check.bitwise else f"within {check.worst:.2g} nats"
    return f"{said}; {counted(check.rows, 'target')} as kept {bits}"


def _cache_scales(engine: Engine) -> list[str]:
    """The source of a cache's static scales, if it has any."""
    if not (engine.kv_cache and (scales := engine.kv_cache.scales)):
        return []
    if scales.source == "measured":
        windows = counted(scales.windows or 0, "window")
        return [f"scales measured on {windows} of {scales.tokens:,} tokens"]
    return [f"scales of {printable(scales.source)}"]


def _cache_of_base(record: Scored) -> list[str]:
    """The format of the base's keys and values, where the record has it."""
    base = (record.reference and record.reference.engine) or {}
    if "dtype" not in base:
        return []
    cache = base.get("kv_cache_dtype")
    return [f"the base's in {base['dtype'] if cache in (None, '', 'auto') else str(cache)}"]


def bits(body: float | None, file: float | None, not_decoded: object) -> str:
    """Both bits-per-weight conventions; `not_decoded`: why the file's are not known."""
    if file is None:
        return f"not known: {not_decoded}"
    return f"{'none' if body is None else f'{body:.3f}'} layers, {file:.3f} file"


def _rate(record: Scored) -> str:
    engine = record.engine
    work = sum(v for k, v in engine.seconds.items() if k != "load")
    tokens = engine.tokens
    if isinstance(engine, ReplayEngine):
        return "not measured (no model ran)"
    return f"{tokens / work:,.0f} tokens/s" if work and tokens else "not measured (all resumed)"


def protocol_words(protocol: Protocol) -> str:
    """A protocol in a line."""
    if protocol.text == "conversations":
        return chat_words(protocol)
    if protocol.text in ("pages", "requests"):
        return f"{protocol.name} ({protocol.context_length:,} tokens read at a time)"
    return (
        f"{protocol.name} (windows of {protocol.context_length} every {protocol.stride}, "
        f"{protocol.scored} targets)"
    )


def text_name(corpus: Corpus) -> str:
    """A text's name as people say it: WikiText-2 by that, however its rows came here."""
    return "WikiText-2" if corpus.name == WIKITEXT2_NAME else corpus.name


def text_words(corpus: Corpus) -> str:
    """A text's name, size and rule in a line."""
    rows = ""
    if corpus.row_limit is not None:
        seed = corpus.row_seed
        which = "first " if seed is UNSET else ""
        # More may be asked for than there are.
        count = min(corpus.row_limit, corpus.rows or 0)
        rows = f", {which}{count} of {corpus.rows} rows"
        if corpus.text.rule == "pages":
            rows = f", {which}{counted(corpus.row_limit, 'page')}"
        rows += "" if seed is UNSET else f" drawn by seed {seed}"
    # Of a text that has no rows all rules on them make the same.
    rule = corpus.text.rule
    is_whole = corpus.rows is None and rule in ("rows", "nonblank-rows", "raw-file")
    return f"{corpus.name}{rows}, {corpus.text.bytes:,} bytes" + ("" if is_whole else f" ({rule})")


def calibration_rows(record: Scored, *, held_out: bool = False) -> list[tuple[str, str]]:
    """A row on a text that is not held out, or on one that is where `held_out` asks for that."""
    found = record.calibration
    if not found or (found.share <= HELD_OUT) != held_out:
        return []
    return [("held out" if held_out else "NOT HELD OUT", _calibration_words(found))]


def _calibration_words(found: Calibration) -> str:
    """A sentence such as `3.20% of the targets stand in c4.jsonl, too, the calibration text of …`."""
    share = f"{found.share:.2%}" if found.targets else "none"
    name, tokens = printable(found.name), counted(found.tokens, "token")
    seen = sorted((found.labels or {}).items(), key=lambda item: (-item[1], item[0]))
    # Of several groups the one that has most.
    most = f"; of {printable(seen[0][0])} {seen[0][1]:.2%}" if len(seen) > 1 else ""
    return (
        f"{share} of the targets stand in {name}, too, the calibration text of {tokens}, among "
        f"{found.ngram} tokens in a row{most}"
    )


def chat_words(protocol: Protocol) -> str:
    """A protocol of conversations in a line."""
    return (
        f"{protocol.name} ({_SCORED[protocol.scored]}; longer than "
        f"{protocol.context_length:,} tokens: {_LONG[str(protocol.long)]})"
    )


def chat_sentence(protocol: Protocol, chats: Conversations) -> str:
    """The scored part of conversations, in a sentence of a card."""
    template = chats.template
    by = "" if template is None else f" by chat template {template.sha256[:12]}"
    return (
        f"each conversation by itself{by}, those longer than {protocol.context_length:,} tokens "
        f"{_RULES[str(protocol.long)]}, {_SCORED[protocol.scored]}"
    )


def conversation_rows(corpus: Corpus) -> list[tuple[str, str]]:
    """Rows on conversations, their turns, and what isn't scored of these; none of a text."""
    if not (chats := corpus.conversations):
        return []
    said = [counted(chats.read, "conversation")]
    kinds = {
        "bad_rows": "bad and left out",
        "long": "longer than a window",
        "lost": "without a target left",
    }
    said += [f"{n:,} {words}" for name, words in kinds.items() if (n := getattr(chats, name))]
    turns = [counted(chats.turns, "turn")] if chats.turns else []
    if turns and (spread := chats.turn_targets):
        turns[0] += f" of {spread.least:,} to {spread.most:,} targets"
        turns[0] += f" (median {spread.median:,g})"
    kinds = {
        "apart": "with a text of their own",
        "unended": "without an end",
        "unprompted": "that begin otherwise than the template prompts",
        "without_calls": "whose tool calls the chat template leaves out (--chat-template FILE)",
    }
    turns += [f"{n:,} {words}" for name, words in kinds.items() if (n := getattr(chats, name))]
    rows = [("turns", "; ".join(", ".join(part) for part in (said, turns) if part))]
    if left := [words(n) for name, words in _NOT_SCORED.items() if (n := getattr(chats, name))]:
        rows.append(("not scored", ", ".join(left)))
    return rows


def template_rows(corpus: Corpus) -> list[tuple[str, str]]:
    """Rows on the chat template and on rows that were left out, none of a text."""
    if not (chats := corpus.conversations):
        return []
    rows = [("left out", printable(line)) for line in chats.bad]
    if (found := chats.template) is None:
        return rows
    given = f", given {json.dumps(found.arguments)}" if found.arguments else ""
    day = f", for which today is {found.date}" if found.date else ""
    words = f"{found.source}, sha256 {found.sha256[:12]}…{given}{day}"
    return [("chat template", printable(words)), *rows]
