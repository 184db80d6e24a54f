"""The record's definition: every section with its meaning and shape, and the statuses that need it.

Reading checks records against it (`results.record.checked`); the table in docs/record.md and
docs/record.schema.json are made of it (`tools/record_docs.py`). Fields that it doesn't name are free:
an engine notes more of itself than anything here reads. A field ends in `?` where some record that
can still be read lacks it; no field's meaning changes within a `schema_version`.
"""

from dataclasses import dataclass
from typing import Any

from scoremode.results.record.shape import (
    COUNT,
    FRACTION,
    NUMBER,
    SHA256,
    Choice,
    Each,
    Either,
    Maybe,
    Range,
    Where,
)

__all__ = ["SCHEMA", "SCHEMA_VERSION", "SECTIONS", "STATUSES", "Section", "record_shape"]

SCHEMA = "scoremode.record"
# 2: with sha256 of parts, Scores and the record itself.
SCHEMA_VERSION = 2
STATUSES = ("running", "done", "shard", "invalid")


@dataclass(frozen=True)
class Section:
    """A field of the record itself.

    - `words`: its meaning, in Markdown. `shape`: as `results.record.shape` has it.
    - `needed`: the statuses whose records have it; in those of others it may be missing.
    """

    words: str
    shape: Any
    needed: tuple[str, ...] = ()


_TEXT = Maybe(str)
_POSITIVE = Range(int, 1)
_METRIC = {"value": NUMBER, "ci95": Maybe([NUMBER, NUMBER]), "n": COUNT, "note": _TEXT}
_BITS = {"body": Maybe(NUMBER), "file": Maybe(NUMBER)}
_FLOATS = Choice("bfloat16", "float16", "float32")
_DEVICE = {"type": str, "name": str, "threads": Maybe(COUNT), "memory_bytes?": Maybe(COUNT)}

_KV_SCALES = Maybe([Maybe([NUMBER])])
_KV_CACHE = {
    "k": str,
    "v": str,
    "layers": COUNT,
    "scales": Maybe(
        {
            "source": str,
            "windows?": COUNT,
            "tokens?": COUNT,
            "k?": _KV_SCALES,
            "v?": _KV_SCALES,
        }
    ),
}

_TORCH = {
    "engine": str,
    "torch?": str,
    "vocabulary": COUNT,
    "model_class?": str,
    "dtype": str,
    "arithmetic": str,
    "activations?": Maybe({"declared": _TEXT, "ran": _TEXT}),
    "products?": [{"format": str, "inputs": str, "product": str, "native": bool, "linears": COUNT}],
    "attention": str,
    "kv_cache_dtype?": _TEXT,
    "kv_cache?": _KV_CACHE,
    "kv_scales_sha256?": str,
    "text_alone?": _TEXT,
    "device": _DEVICE,
    "devices?": [dict],
    "batch_windows?": Maybe(COUNT),
    "placement?": _TEXT,
    "kernels?": dict,
    "fused?": dict,
    "layers?": str,
    "prefixes?": str,
    "experts?": _TEXT,
    "head?": Maybe(dict),
    "tokens": COUNT,
    "seconds": Each(NUMBER),
    "peak_bytes": COUNT,
    "estimated_bytes?": COUNT,
    "chunks?": [str],
    "unused_tensors": [str],
}
_VLLM = {
    "vllm": str,
    "runner": str,
    "linear": dict,
    "head_dtype": str,
    "tensor_parallel_size": COUNT,
    "pipeline_parallel_size": COUNT,
    "path?": str,
    "problem?": _TEXT,
    "arguments?": Each(str),
}
_ENGINE = Where(_TORCH, "engine", "vllm", _VLLM)

_SOURCE = {
    "source": str,
    "path?": str,
    "fingerprint": str,
    "files?": Each(str),
    "bytes?": COUNT,
    "gib?": Maybe(NUMBER),
    "not_decoded?": str,
    "mixture?": {
        "source": str,
        "taken": [
            {
                "pattern": str,
                "source": str,
                "path": str,
                "fingerprint": str,
                "is_base": bool,
                "modules": COUNT,
                "differing": [str],
            }
        ],
    },
}
_STORED = _SOURCE | {
    "bits_per_weight": _BITS | {"file": NUMBER},
    "parameters?": Maybe(COUNT),
    "quantized_parameters?": Maybe(COUNT),
    "formats": Each(dict),
    "kv_cache_declared": _TEXT,
}
# One that vLLM decodes and scoremode doesn't has no bits, and says why.
_CHECKPOINT = Either(_STORED, _STORED | {"bits_per_weight": _BITS, "not_decoded": str})
_TOKENIZER = {
    "source": str,
    "sha256": str,
    "size": COUNT,
    "bos?": Maybe(COUNT),
    "adds?": {"front": [COUNT], "behind": [COUNT]},
    "auto_tokenizer?": Maybe(dict),
}
_KEPT_HEAD = {
    "vocabulary": _POSITIVE,
    "scale": NUMBER,
    "softcap": Maybe(NUMBER),
    "dtype": _FLOATS,
    "width": _POSITIVE,
    "sha256": {"weight": SHA256, "bias?": SHA256},
}
_IN_CHECKPOINT = {"source": str, "path": str, "weight": str, "bias": _TEXT}
_HEAD = Either(
    _KEPT_HEAD | {"file": str, "checkpoint": Maybe(_IN_CHECKPOINT)},
    _KEPT_HEAD | {"file": _TEXT, "checkpoint": _IN_CHECKPOINT},
)
_REPLAY = Maybe({"rows": COUNT, "bitwise": bool, "rms": NUMBER, "worst": NUMBER})
_REFERENCE = {
    "kind?": str,
    "source": str,
    "path?": str,
    "sha256?": str,
    "states_sha256?": str,
    "checkpoint?": Maybe(_SOURCE | {"bits_per_weight?": _BITS}),
    "files?": Each(str),
    "tokenizer?": _TOKENIZER,
    "engine?": dict,
    "metrics?": Each(_METRIC),
    "head?": _HEAD,
    "arithmetic?": Maybe(str),
    "replay_at_load?": _REPLAY,
    "replay?": _REPLAY,
}
_SHARD = {
    "number": _POSITIVE,
    "passes": [COUNT, COUNT],
    "of_passes": _POSITIVE,
    "windows": [COUNT, COUNT],
    "targets": _POSITIVE,
}
_MERGED = _SHARD | {
    "run": str,
    "record_sha256": SHA256,
    "scores_sha256": SHA256,
    "device": _DEVICE,
    "processes": _POSITIVE,
    "command": [str],
    "created?": str,
    "finished?": str,
    "seconds": Each(NUMBER),
}
_GATE = {
    "name": str,
    "metric": str,
    "limit": NUMBER,
    "value": NUMBER,
    "on": Choice("value", "upper"),
    "bound": Maybe(NUMBER),
    "met": bool,
    "note": _TEXT,
}
_GROUP = {
    "group": str,
    "from?": NUMBER,
    "to?": Maybe(NUMBER),
    "n": COUNT,
    "share": NUMBER,
    "kld?": _METRIC,
    "ppl_ratio?": _METRIC,
    "ppl?": _METRIC,
    "top1?": _METRIC,
    "confident_flips?": _METRIC,
    "halved?": _METRIC,
    "entropy_change?": _METRIC,
    "kld_p99?": _METRIC,
    "kld_p999?": _METRIC,
}
_WORST = {
    "window": COUNT,
    "position": _POSITIVE,
    "index": COUNT,
    "target": COUNT,
    "p_base": FRACTION,
    "p_model": FRACTION,
    "kld": NUMBER,
    "base_top1": COUNT,
    "top1": COUNT,
    "target_text?": str,
    "base_top1_text?": str,
    "top1_text?": str,
    "context?": str,
}

_JUDGED = {
    "metrics": Each(NUMBER),
    "stderr": Each(NUMBER),
    "base?": {"metrics": Each(NUMBER), "stderr": Each(NUMBER)},
    "pairs?": Each(
        {
            "difference": _METRIC,
            "lost?": COUNT,
            "gained?": COUNT,
            "p?": FRACTION,
            "changed?": COUNT,
        }
    ),
}

SECTIONS: dict[str, Section] = {
    "schema": Section("`scoremode.record`", str, STATUSES),
    "schema_version": Section("2; no other is read", _POSITIVE, STATUSES),
    "status": Section(
        "`running`, `done`, `shard` (a [shard](shards.md) that is done: no whole run, and without "
        "metrics), or `invalid` with a `reason`",
        Choice(*STATUSES),
        STATUSES,
    ),
    "reason": Section("why the scores can't be true", str, ("invalid",)),
    "created": Section("when scoring began, UTC", str),
    "finished": Section("when the record was written last, UTC", str),
    "command": Section("the command line", [str]),
    "directory": Section(
        "the folder that it ran in, which relative places in the record are relative to", str
    ),
    "versions": Section(
        "scoremode, Python, the platform, the libraries that can move a number", Each(str)
    ),
    "identity": Section(
        "what a resumed run must share: headers, plan, engine settings, device, versions; of "
        "conversations the data set, the template with what it was given, and the groups; of `tasks` "
        "their names and how they were asked",
        {
            "checkpoint?": str,
            "plan?": str,
            "conversations?": dict,
            "engine": {"device": {"type": str, "name": str}},
            "versions?": Each(str),
            "reference?": dict,
            "full?": bool,
            "noise_floor?": _TEXT,
            "keep?": _TEXT,
            "token_text?": bool,
            "labels?": SHA256,
            "tasks?": dict,
            "confident?": FRACTION,
            "shard?": {"number": _POSITIVE, "of": _POSITIVE},
        },
        ("running", "shard"),
    ),
    "checkpoint": Section(
        "source, sha256 of config and weight files, formats, both bits per weight, size; of a "
        "`mixture` the `source` of the model, and each pattern of modules `taken` from another "
        "checkpoint, how many it named, whether that is the base, and unquantized tensors beside them "
        "that are `differing`",
        _CHECKPOINT,
        STATUSES,
    ),
    "tokenizer": Section(
        "source and sha256, its BOS and what it adds; `auto_tokenizer`: what transformers' "
        "AutoTokenizer made of the text, or why it can't; null where there is no text to give it",
        _TOKENIZER,
        STATUSES,
    ),
    "corpus": Section(
        "where the text is from, its rows, and the sha256 and bytes of what the protocol's rule made "
        "of them (of files apart the sha256 of the list of theirs); `group_by`: the field that names "
        "groups; `text_field`: the field of the text, where that is not `text`; `row_seed`: what drew "
        "the `row_limit` rows, which are the first ones without; "
        "`preset`: the [named text](texts.md) that it is, and the `separator` of its rows; "
        "of `conversations` the sha256 and bytes of their files, the chat template with what "
        "it was told and whether a file of it was given, the ids of the tokens that end a turn, "
        "how many rows were read, how many of them bad and left out with a line for "
        "each of the first 20, how many are longer than a window, and how many have no target left, "
        "and of the turns that count how many there are, how many have a text of their own (`apart`), "
        "no token that ends them, another beginning than the template prompts for; `respelled` turns"
        " are scored in the `generated_ids` that their row has; `turn_targets`: how many targets a "
        "turn has; `unmarked` turns have no mark by a template that marks others, and don't count. "
        "Tokens of turns that are no targets: `straddling` ones hold characters of the model's and "
        "others, `outside` ones are not marked as generated, `behind` the end of a turn, `opening` "
        "the first of a text, `beyond` the context length; `prompted` tokens are marked, and the "
        "prompt gives them; `generated`: by which "
        "base, engine and sampling a file of conversations was written, as the record beside it says, "
        "which is of that very file ([generate](generate.md))",
        {
            "name": str,
            "source?": _TEXT,
            "source_sha256?": _TEXT,
            "rows": Maybe(COUNT),
            "row_limit": Maybe(COUNT),
            "text_field?": str,
            "row_seed?": COUNT,
            "preset?": str,
            "separator?": str,
            "group_by?": str,
            "text": {"rule": str, "sha256": str, "bytes": COUNT},
            "generated?": {
                "base": dict,
                "engine": dict,
                "sampling": dict,
                "record_sha256": SHA256,
            },
            "conversations?": {
                "template": Maybe(
                    {
                        "source": str,
                        "sha256": str,
                        "arguments": dict,
                        "date": _TEXT,
                        "given": bool,
                    }
                ),
                "read": COUNT,
                "ends": [COUNT],
                "bad_rows": COUNT,
                "bad": [str],
                "long": COUNT,
                "lost": COUNT,
                "turns": COUNT,
                "apart": COUNT,
                "unended": COUNT,
                "unprompted": COUNT,
                "straddling": COUNT,
                "respelled?": COUNT,
                "unmarked?": COUNT,
                "outside?": COUNT,
                "behind?": COUNT,
                "opening?": COUNT,
                "prompted?": COUNT,
                "beyond?": COUNT,
                "turn_targets?": {"least": COUNT, "median": NUMBER, "most": COUNT},
            },
        },
        STATUSES,
    ),
    "protocol": Section(
        "every field of the [protocol](protocols.md), and their `sha256`",
        {
            "name": str,
            "text?": str,
            "bos?": str,
            "bos_at?": str,
            "context_length": Range(int, 2, 2**31 - 1),
            "stride": _POSITIVE,
            "scored": str,
            "tail?": str,
            "short_text?": str,
            "min_contexts?": COUNT,
            "max_windows?": Maybe(_POSITIVE),
            "all_windows_required?": bool,
            "vocabulary": str,
            "average?": str,
            "stop_when?": str,
            "seed?": COUNT,
            "long?": str,
            "sha256?": str,
        },
        STATUSES,
    ),
    "plan": Section(
        "sha256 of the token ids and of the windows; how many tokens, windows, targets (`scored`) and "
        "places in the text (`unique`), of `conversations` how many have a window; the BOS in front "
        "of the stream or of every window; of a run that a rule may have stopped the windows that were "
        "scored, in the order in which they were drawn, and under `planned` all there were; `labels`: "
        "of a text with groups the targets of each",
        {
            "tokens": COUNT,
            "windows": _POSITIVE,
            "scored": _POSITIVE,
            "unique": _POSITIVE,
            "stream_bos": Maybe(COUNT),
            "window_bos": Maybe(COUNT),
            "tokens_sha256": str,
            "sha256": str,
            "conversations?": _POSITIVE,
            "planned?": {
                "windows": _POSITIVE,
                "scored": _POSITIVE,
                "unique": _POSITIVE,
                "sha256": str,
                "conversations?": _POSITIVE,
            },
            "labels?": Each(COUNT),
        },
        STATUSES,
    ),
    "schedule": Section(
        "windows of a pass and of a micro-batch; `chunk_tokens` where long windows went in parts "
        "through what takes each token by itself; of conversations the most windows and tokens of "
        "both, whether a micro-batch `pads` windows of several lengths, and how often each was "
        "`split`; `row_tokens` where windows that begin alike lie in rows of so many tokens, with what "
        "they have in common once",
        {
            "pass_windows": _POSITIVE,
            "batch_windows": _POSITIVE,
            "chunk_tokens?": _POSITIVE,
            "pass_tokens?": _POSITIVE,
            "batch_tokens?": _POSITIVE,
            "pads?": bool,
            "split?": _POSITIVE,
            "row_tokens?": _POSITIVE,
        },
        ("running", "shard"),
    ),
    "shard": Section(
        "of a run with `--shard`: which one it is, from 1, `of` how many; its `passes`, the first and "
        "the one behind its last, counted from 0, `of_passes` of the whole run; its `windows` in the "
        "same way, its `targets`; `batches_sha256` of the whole plan's micro-batches and of the chunks "
        "of long windows, which all shards must share",
        _SHARD | {"of": _POSITIVE, "batches_sha256": SHA256},
        ("shard",),
    ),
    "merged": Section(
        "of a run that `scoremode merge` made of `shards`, each with its folder's name as `run`, the "
        "sha256 of its record and of its scores, its passes, windows and targets as in `shard`, its "
        "device and how many `processes` shared it, its command line, when it was begun and done, and "
        "its `seconds`. The run's own `seconds`, and its engine's seconds and tokens, are their sums",
        {"shards": [_MERGED]},
    ),
    "schedule_change": Section(
        "where the device ran out of memory: after how many passes micro-batches were halved, from "
        "what, and what the device said",
        {"after_passes": COUNT, "batch_windows_before": _POSITIVE, "reason": str},
    ),
    "engine": Section(
        "device, dtype, arithmetic, products, attention, KV cache, head, seconds a stage, peak memory, "
        "unused tensors",
        _ENGINE,
        ("done", "shard"),
    ),
    "seconds": Section(
        "the whole process by stage: `start` (from exec to the command's work; 0 where no command line "
        "began it), `text`, `open` (the model's headers), `plan`, `import` (what of torch and "
        "transformers was not there by then), `base` (opened and proven), `check` (of a resumed run: "
        "what is there), `engine` (the model's skeleton, the first weights), `score`, `hash` (of the "
        "files, where that takes longer than the scores), `write` (parts on their way to disk), "
        "`noise`, `finish`, `end` (of the engine), and their `total`, which is what the user waited. "
        "Stages that did not occur are not there",
        Each(NUMBER, ("write", "total")),
        ("done", "shard"),
    ),
    "metrics": Section(
        "`ppl`, `nll` (mean nats), `bits_per_byte` and against a base many more, each with `value`, "
        "`ci95`, `n`, `note`",
        Each(_METRIC, ("ppl", "nll")),
        ("done",),
    ),
    "intervals": Section(
        "what intervals are made of: `block_length` in tokens and how many `blocks`, the `rule` that "
        "decided (`shortest`, `window`, `autocorrelation`, `eighth`; `conversation`: each is a block, "
        "and `block_length` 1; fewer than 100 say what share their 95 % intervals cover where levels "
        "scatter most, `covers`: docs/statistics.md), the `shortest` there is, and the length that the "
        "`autocorrelation` of each column asks for; `groups`: the same of the blocks that groups of "
        "`--group-by` have, by scores less their group's mean; not in the first runs, whose blocks are "
        "one window long",
        {
            "blocks?": COUNT,
            "block_length": _POSITIVE,
            "rule?": str,
            "covers?": FRACTION,
            "shortest?": _POSITIVE,
            "autocorrelation?": Each(Maybe(NUMBER)),
            "groups?": {
                "blocks": COUNT,
                "block_length": _POSITIVE,
                "rule": str,
                "shortest": _POSITIVE,
                "autocorrelation": Each(Maybe(NUMBER)),
            },
        },
    ),
    "calibration": Section(
        "of a run with `--calibration`: that text's name, source and sha256, its field of a data set, "
        "how many `documents` and `tokens` it has; how many of the scored `targets` lie in `ngram` "
        "tokens in a row that a document has, their `share`, and that of each label of `--group-by` "
        "([held out?](held-out.md))",
        {
            "name": str,
            "source": str,
            "source_sha256": SHA256,
            "text_field": str,
            "documents": _POSITIVE,
            "tokens": COUNT,
            "ngram": _POSITIVE,
            "targets": COUNT,
            "share": FRACTION,
            "labels?": Each(FRACTION),
        },
    ),
    "stopping": Section(
        "of a run with `--stop-when`: its `rule`, the `seed` of the order of windows, the `method`, "
        "`after` how many windows `of` how many it ended, whether the rule was `met`, and each of the "
        "`looks`: its `windows`, the metric's `value`, the interval `ci95` of what all windows would "
        "give, null for too few, and whether that `met` the rule",
        {
            "rule": str,
            "seed": COUNT,
            "method": str,
            "after": _POSITIVE,
            "of": _POSITIVE,
            "met": bool,
            "looks": [
                {
                    "windows": _POSITIVE,
                    "value": NUMBER,
                    "ci95": Maybe([NUMBER, NUMBER]),
                    "met": bool,
                }
            ],
        },
    ),
    "gates": Section(
        "of a comparison with gates: `name`, `metric`, `limit`, `value`, `on` (`value` or `upper`), "
        "the `bound` that was judged, whether it was `met`, `note`",
        [_GATE],
    ),
    "distribution": Section(
        "against a base: of `kld`, `kld_reverse`, `jsd`, `delta_p` the `minimum`, percentiles (keys "
        "`0.1` … `99.9`) and `maximum`",
        Each(Each(NUMBER)),
    ),
    "breakdown": Section(
        "against a base: `confidence`, `position`, `token_class`, each a list of groups: `group`, "
        "`from` and `to` where it has bounds, `n`, `share`, `kld`, `ppl_ratio`; `label` (of "
        "`--group-by`, largest KLD first) and `turn` (the target's place in its assistant's turn), "
        "whose groups have `ppl`, `top1`, `confident_flips`, `halved`, `kld_p99`, `kld_p999` and with "
        "`--full` `entropy_change` as well; of windows of more than 4,096 tokens `depth` (how many "
        "stand before the target), with `ppl` and `top1`. Without a base these three alone, with `ppl` "
        "(labels by the largest)",
        Each([_GROUP]),
    ),
    "thresholds": Section(
        "against a base: `confident`, the probability of its likeliest token above which the base is "
        "sure, for `confident_flips` (0.9 but with `--confident`)",
        {"confident": FRACTION},
    ),
    "llama_cpp": Section(
        "against a base: llama-perplexity's block ([llama-cpp.md](llama-cpp.md)), each estimate with "
        "`value` and `error`; null for fewer than 100 targets, not there where windows weigh "
        "differently",
        Maybe(dict),
    ),
    "llama_cpp_note": Section("why there is no such block", str),
    "reference": Section(
        "the base: `kind`, `source`, `checkpoint` with its files' hashes, `engine`, `sha256` (files "
        "and arithmetic: what two runs must share to be ranked), `states_sha256` and `head` of a "
        "stored one, `replay`; `arithmetic`: in words, where base and model computed in other dtypes",
        _REFERENCE,
    ),
    "noise_floor": Section(
        "the base against itself: what changed, its `kld`, `distribution`, and whether it `resolves`",
        Maybe(
            {
                "change?": str,
                "words": str,
                "kld": _METRIC,
                "ppl_ratio?": _METRIC,
                "top1?": _METRIC,
                "distribution?": Each(NUMBER),
                "resolves": bool,
                "engine?": dict,
            }
        ),
    ),
    "kept": Section(
        "of a reference: `states` (dtype, width, rows, files with sha256), `head`, `tokens`, `sha256` "
        "of all",
        {
            "states": {
                "dtype": _FLOATS,
                "width": _POSITIVE,
                "rows": _POSITIVE,
                "files": [{"name": str, "rows": _POSITIVE, "sha256": SHA256}],
            },
            "head": _HEAD,
            "tokens?": {"name": str, "sha256": SHA256},
            "sha256": SHA256,
        },
    ),
    "parts": Section(
        "while it runs: of each finished pass the `sha256` of its part, and of its `states` where they "
        "are kept",
        [{"sha256": SHA256, "states?": SHA256}],
        ("running",),
    ),
    "scores": Section(
        "of a run or a shard that is done: `scores.parquet`'s `name`, `rows` and `sha256`; "
        "`token_text`: true where it has each target's text (`--token-text`)",
        {"name": str, "rows": _POSITIVE, "sha256": SHA256, "token_text?": bool},
        ("done", "shard"),
    ),
    "requests": Section(
        "of [tasks](tasks.md) and of the protocol `lm-eval`: `requests.parquet`'s `name`, `rows` and "
        "`sha256`, a row for each context and continuation with its log-likelihood, or for each page; "
        "how many windows were `shortened` from the left to what the model reads at a time; the "
        "`prefix`: the token before what nothing precedes, and whether it `is` the tokenizer's BOS or "
        "EOS",
        {
            "name": str,
            "rows": _POSITIVE,
            "sha256": SHA256,
            "shortened": COUNT,
            "prefix?": Maybe({"id": COUNT, "token": _TEXT, "is": str}),
        },
    ),
    "pages": Section(
        "of the protocol `lm-eval`: how many `pages`, `words` and `bytes` WikiText has before it is "
        "detokenized, and the harness's `metrics` of them, a base's with `_base` behind",
        {
            "pages": _POSITIVE,
            "words": _POSITIVE,
            "bytes": _POSITIVE,
            "metrics": Each(_METRIC),
        },
    ),
    "tasks": Section(
        "of [tasks](tasks.md): how the `harness` was asked and its version; of each of the `tasks` how "
        "many `questions` and `requests` it has, the sha256 of their texts, its version, its examples, "
        "its data set with fingerprints, and the harness's `metrics` with their `stderr`; of each of "
        "the `groups` its tasks and metrics; against a base the same of the `base`, of each metric the "
        "`pairs` of questions (`difference` of the means, questions `lost` and `gained`, McNemar's "
        "exact `p`, answers `changed`), and the `kld` of the answers' tokens; `answers.parquet`'s "
        "`name`, `rows` and `sha256`",
        {
            "harness": {
                "lm_eval": str,
                "tasks": [str],
                "num_fewshot": Maybe(COUNT),
                "limit": Maybe(NUMBER),
                "chat": bool,
                "multiturn": bool,
                "system": _TEXT,
            },
            "tasks": Each(
                _JUDGED
                | {
                    "questions": _POSITIVE,
                    "requests": _POSITIVE,
                    "requests_sha256": SHA256,
                    "version": str,
                    "num_fewshot": COUNT,
                    "dataset": {"path": _TEXT, "name": _TEXT, "fingerprints": Each(str)},
                    "kld?": _METRIC,
                }
            ),
            "groups": Each(_JUDGED | {"tasks": [str]}),
            "answers": {"name": str, "rows": COUNT, "sha256": SHA256},
        },
    ),
    "worst": Section(
        "against a base: the ten targets of largest KLD: where they stand, both probabilities, both "
        "likeliest ids, their texts and the text before",
        [_WORST],
    ),
    "sha256": Section("of all else in the record", SHA256, STATUSES),
}


def record_shape(status: str) -> dict[str, Any]:
    """The shape of a whole record of that `status`."""
    return {
        name if status in section.needed else f"{name}?": section.shape
        for name, section in SECTIONS.items()
    }
