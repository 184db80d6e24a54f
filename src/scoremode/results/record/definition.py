"""A run's record: every section with its meaning and type, and what a record of each status must have.

A record is one of `Running`, `Done`, `ShardDone` and `Invalid`, told apart by its `status`. The table
in docs/record.md and docs/record.schema.json are made of these types (`tools/reference_docs.py`). No
field's meaning changes within a `schema_version`.
"""

# A record of one status requires what the base leaves open, which msgspec allows:
# pyright: reportGeneralTypeIssues=false

from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from scoremode.results.record.model import (
    Checkpoint,
    HttpEngine,
    Kept,
    Reference,
    ReplayEngine,
    Tokenizer,
    TorchEngine,
    VllmEngine,
)
from scoremode.results.record.outcome import (
    Gate,
    Group,
    Identity,
    Intervals,
    NoiseFloor,
    Part,
    ScoresFile,
    Stopping,
    Survival,
    Thresholds,
    WorstTarget,
)
from scoremode.results.record.section import (
    Metric,
    Section,
    Sha256,
    decode,
    words,
)
from scoremode.results.record.text import (
    Calibration,
    Corpus,
    Merged,
    Pages,
    Plan,
    Protocol,
    RequestsFile,
    Schedule,
    ScheduleChange,
    Shard,
    Tasks,
)

SCHEMA = "scoremode.record"
SCHEMA_VERSION = 2


# Metrics that every run has, and stages.
_ALWAYS, _STAGES = ("ppl", "nll"), ("write", "total")


def _needs(keys: tuple[str, ...]) -> Meta:
    """The schema's part of `_require`."""
    return Meta(extra_json_schema={"required": list(keys)})


def _require(section: str, value: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in value:
            raise ValueError(f"has no {section}.{key}")


_Reason = Annotated[
    str,
    words("why the scores can't be true"),
]

_Identity = Annotated[
    Identity,
    words(
        "what a resumed run must share: headers, plan, engine settings, device, versions; of "
        "conversations the data set, the template with what it was given, and the groups; of "
        "`tasks` their names and how they were asked"
    ),
]

_Schedule = Annotated[
    Schedule,
    words(
        "windows of a pass and of a micro-batch; `chunk_tokens` where long windows went in parts "
        "through what takes each token by itself; of conversations the most windows and tokens of "
        "both, whether a micro-batch `pads` windows of several lengths, and how often each was "
        "`split`; `row_tokens` where windows that begin alike lie in rows of so many tokens, with "
        "what they have in common once"
    ),
]

_Shard = Annotated[
    Shard,
    words(
        "of a run with `--shard`: which one it is, from 1, `of` how many; its `passes`, the first "
        "and the one behind its last, counted from 0, `of_passes` of the whole run; its `windows` "
        "in the same way, its `targets`; `batches_sha256` of the whole plan's micro-batches and "
        "of the chunks of long windows, which all shards must share"
    ),
]

_Engine = Annotated[
    TorchEngine | VllmEngine | ReplayEngine | HttpEngine,
    words(
        "device, dtype, arithmetic, products, attention, KV cache, head, seconds a stage, peak "
        "memory, unused tensors; `engine` is `torch`, `vllm`, or `replay` for predictions that were "
        "kept: `replayed` says which (`sha256` of states and head, `run_sha256` of their record; or of "
        "llama.cpp's file, with the `step_nats` of its codes and how far they reach), the `engine` "
        "that made them, the dtype that it rounded `logits` to, and how far their scores are from "
        "those that were kept (`check`); or `http` for a `model` that a `server` of a `version` "
        "served: the `top` likeliest ids were asked for at each place, and `probed` says what it was "
        "found to `give`, where that was shown to be `aligned` with the tokens, whether its "
        "`tokenizer` is ours, and how many tokens it `adds` to a text"
    ),
]

_Seconds = Annotated[
    Annotated[dict[str, float], _needs(_STAGES)],
    words(
        "the whole process by stage: `start` (from exec to the command's work; 0 where no command "
        "line began it), `text`, `open` (the model's headers), `plan`, `import` (what of torch "
        "and transformers was not there by then), `base` (opened and proven), `check` (of a "
        "resumed run: what is there), `engine` (the model's skeleton, the first weights), "
        "`score`, `hash` (of the files, where that takes longer than the scores), `write` (parts "
        "on their way to disk), `noise`, `finish`, `end` (of the engine), and their `total`, "
        "which is what the user waited. Stages that did not occur are not there"
    ),
]

_Metrics = Annotated[
    Annotated[dict[str, Metric], _needs(_ALWAYS)],
    words(
        "`ppl`, `nll` (mean nats), `bits_per_byte` and against a base many more, each with "
        "`value`, `ci95`, `n`, `note`"
    ),
]

_Parts = Annotated[
    list[Part],
    words(
        "while it runs: of each finished pass the `sha256` of its part, and of its `states` where "
        "they are kept"
    ),
]

_Scores = Annotated[
    ScoresFile,
    words(
        "of a run or a shard that is done: `scores.parquet`'s `name`, `rows` and `sha256`; "
        "`token_text`: true where it has each target's text (`--token-text`)"
    ),
]


class Record(Section, frozen=True, kw_only=True, tag_field="status", dict=True):
    """The sections that a record of any status may have."""

    schema: Annotated[
        Literal["scoremode.record"],
        words("`scoremode.record`"),
    ]
    schema_version: Annotated[
        Literal[2],
        words("2; no other is read"),
    ]
    reason: _Reason | UnsetType = UNSET
    created: Annotated[
        str | UnsetType,
        words("when scoring began, UTC"),
    ] = UNSET
    finished: Annotated[
        str | UnsetType,
        words("when the record was written last, UTC"),
    ] = UNSET
    command: Annotated[
        list[str] | UnsetType,
        words("the command line"),
    ] = UNSET
    label: Annotated[
        str | UnsetType,
        words(
            "of a run with `--label`: what tables and charts call its model; without, they take a name "
            "from `checkpoint.source` ([labels](report.md#labels))"
        ),
    ] = UNSET
    directory: Annotated[
        str | UnsetType,
        words("the folder that it ran in, which relative places in the record are relative to"),
    ] = UNSET
    versions: Annotated[
        dict[str, str] | UnsetType,
        words("scoremode, Python, the platform, the libraries that can move a number"),
    ] = UNSET
    identity: _Identity | UnsetType = UNSET
    checkpoint: Annotated[
        Checkpoint,
        words(
            "source, sha256 of config and weight files, formats, both bits per weight, size; of a "
            "`mixture` the `source` of the model, and each pattern of modules `taken` from another "
            "checkpoint, how many it named, whether that is the base, and unquantized tensors beside "
            "them that are `differing`"
        ),
    ]
    tokenizer: Annotated[
        Tokenizer,
        words(
            "source and sha256, its BOS and what it adds; `auto_tokenizer`: what transformers' "
            "AutoTokenizer made of the text, or why it can't; null where there is no text to give it"
        ),
    ]
    corpus: Annotated[
        Corpus,
        words(
            "where the text is from, its rows, and the sha256 and bytes of what the protocol's rule "
            "made of them (of files apart the sha256 of the list of theirs); `group_by`: the field "
            "that names groups; `text_field`: the field of the text, where that is not `text`; "
            "`row_seed`: what drew the `row_limit` rows, which are the first ones without; `preset`: "
            "the [named text](texts.md) that it is, and the `separator` of its rows; of "
            "`conversations` the sha256 and bytes of their files, the chat template with what it was "
            "told and whether a file of it was given, the ids of the tokens that end a turn, how many "
            "rows were read, how many of them bad and left out with a line for each of the first 20, "
            "how many are longer than a window, and how many have no target left, and of the turns "
            "that count how many there are, how many have a text of their own (`apart`), no token "
            "that ends them, another beginning than the template prompts for; `respelled` turns are "
            "scored in the `generated_ids` that their row has; `turn_targets`: how many targets a "
            "turn has; `unmarked` turns have no mark by a template that marks others, and don't "
            "count. Tokens of turns that are no targets: `straddling` ones hold characters of the "
            "model's and others, `outside` ones are not marked as generated, `behind` the end of a "
            "turn, `opening` the first of a text, `beyond` the context length; `prompted` tokens are "
            "marked, and the prompt gives them; `generated`: by which base, engine, sampling and "
            "template a file of conversations was written, as the record beside it says, which is of "
            "that very file ([generate](conversations.md#text-that-the-base-writes-itself))"
        ),
    ]
    protocol: Annotated[
        Protocol,
        words("every field of the [protocol](protocols.md), and their `sha256`"),
    ]
    plan: Annotated[
        Plan,
        words(
            "sha256 of the token ids and of the windows; how many tokens, windows, targets (`scored`) "
            "and places in the text (`unique`), of `conversations` how many have a window; the BOS in "
            "front of the stream or of every window; of a run that a rule may have stopped the "
            "windows that were scored, in the order in which they were drawn, and under `planned` all "
            "there were; `labels`: of a text with groups the targets of each"
        ),
    ]
    schedule: _Schedule | UnsetType = UNSET
    shard: _Shard | UnsetType = UNSET
    merged: Annotated[
        Merged | UnsetType,
        words(
            "of a run that `scoremode merge` made of `shards`, each with its folder's name as `run`, "
            "the sha256 of its record and of its scores, its passes, windows and targets as in "
            "`shard`, its device and how many `processes` shared it, its command line, when it was "
            "begun and done, and its `seconds`. The run's own `seconds`, and its engine's seconds and "
            "tokens, are their sums"
        ),
    ] = UNSET
    schedule_change: Annotated[
        ScheduleChange | UnsetType,
        words(
            "where the device ran out of memory: after how many passes micro-batches were halved, "
            "from what, and what the device said"
        ),
    ] = UNSET
    engine: _Engine | UnsetType = UNSET
    seconds: _Seconds | UnsetType = UNSET
    metrics: _Metrics | UnsetType = UNSET
    intervals: Annotated[
        Intervals | UnsetType,
        words(
            "what intervals are made of: `block_length` in tokens and how many `blocks`, the `rule` "
            "that decided (`shortest`, `window`, `autocorrelation`, `eighth`; `conversation`: each is "
            "a block, and `block_length` 1; fewer than 100 say what share their 95 % intervals cover "
            "where levels scatter most, `covers`: docs/statistics.md), the `shortest` there is, and "
            "the length that the `autocorrelation` of each column asks for; `groups`: the same of the "
            "blocks that groups of `--group-by` have, by scores less their group's mean; not in the "
            "first runs, whose blocks are one window long"
        ),
    ] = UNSET
    calibration: Annotated[
        Calibration | UnsetType,
        words(
            "of a run with `--calibration`: that text's name, source and sha256, its field of a data "
            "set, how many `documents` and `tokens` it has; how many of the scored `targets` lie in "
            "`ngram` tokens in a row that a document has, their `share`, and that of each label of "
            "`--group-by` ([held out?](texts.md#contamination-check))"
        ),
    ] = UNSET
    stopping: Annotated[
        Stopping | UnsetType,
        words(
            "of a run with `--stop-when`: its `rule`, the `seed` of the order of windows, the "
            "`method`, `after` how many windows `of` how many it ended, whether the rule was `met`, "
            "and each of the `looks`: its `windows`, the metric's `value`, the interval `ci95` of "
            "what all windows would give, null for too few, and whether that `met` the rule"
        ),
    ] = UNSET
    gates: Annotated[
        list[Gate] | UnsetType,
        words(
            "of a comparison with gates: `name`, `metric`, `limit`, `value`, `on` (`value` or "
            "`upper`), the `bound` that was judged, whether it was `met`, a `note` why there was no "
            "bound, and `chance`: why another text of this length may judge otherwise, null where it "
            "hardly would, and missing in older runs"
        ),
    ] = UNSET
    distribution: Annotated[
        dict[str, dict[str, float]] | UnsetType,
        words(
            "against a base: of `kld`, `kld_reverse`, `tv`, `tv_draft`, `jsd`, `delta_p` the "
            "`minimum`, percentiles (keys `0.1` … `99.9`) and `maximum`"
        ),
    ] = UNSET
    breakdown: Annotated[
        dict[str, list[Group]] | UnsetType,
        words(
            "against a base: `confidence`, `position`, `token_class`, each a list of groups: `group`, "
            "`from` and `to` where it has bounds, `n`, `share`, `kld`, `ppl_ratio`; `label` (of "
            "`--group-by`, largest KLD first) and `turn` (the target's place in its assistant's "
            "turn), whose groups have `ppl`, `top1`, `confident_flips`, `halved`, `kld_p99`, "
            "`kld_p999` and with `--full` `entropy_change` as well; of windows of more than 4,096 "
            "tokens `depth` (how many stand before the target), with `ppl` and `top1`. Without a base "
            "these three alone, with `ppl` (labels by the largest)"
        ),
    ] = UNSET
    thresholds: Annotated[
        Thresholds | UnsetType,
        words(
            "against a base: `confident`, the probability of its likeliest token above which the base "
            "is sure, for `confident_flips` (0.9 but with `--confident`)"
        ),
    ] = UNSET
    survival: Annotated[
        Survival | UnsetType,
        words(
            "against a base: how many tokens both generate alike, followed over `n` replies or windows "
            "(`units`): `sampled` under the best coupling of their samples, on text that this base "
            "sampled itself (`by_base`), or as far as any other text tells; `greedy` on text that it "
            "generated at temperature 0, else `greedy_note`, why not. Of each the `half_life` in "
            "tokens with `ci95` (null: beyond the `longest` unit), and the curve: after so many "
            "`tokens` the share that is `whole`. Of `greedy` how many units `parted`, how many were "
            "`stopped` before where the base's own likeliest token isn't the text's (`unlike` "
            "targets), and which share is `identical` to its end "
            "([statistics](statistics.md#how-long-generations-stay-the-same))"
        ),
    ] = UNSET
    llama_cpp: Annotated[
        dict[str, Any] | None,
        words(
            "against a base: llama-perplexity's block ([gguf.md](gguf.md#the-block)), each estimate "
            "with `value` and `error`; null for fewer than 100 targets, not there where windows weigh "
            "differently"
        ),
    ] = None
    llama_cpp_note: Annotated[
        str | UnsetType,
        words("why there is no such block"),
    ] = UNSET
    reference: Annotated[
        Reference | UnsetType,
        words(
            "the base: `kind`, `source`, its `label` where it was kept with one, `checkpoint` with its "
            "files' hashes, `engine`, `sha256` "
            "(files and arithmetic: what two runs must share to be ranked), `states_sha256` and "
            "`head` of a stored one, `replay`; `arithmetic`: in words, where base and model computed "
            "in other dtypes"
        ),
    ] = UNSET
    noise_floor: Annotated[
        NoiseFloor | None,
        words(
            "the base against itself: what changed, its `kld`, `distribution`, and whether it "
            "`resolves`"
        ),
    ] = None
    kept: Annotated[
        Kept | UnsetType,
        words(
            "of a reference: `states` (dtype, width, rows, files with sha256), `head`, `tokens`, "
            "`sha256` of all"
        ),
    ] = UNSET
    parts: _Parts | UnsetType = UNSET
    scores: _Scores | UnsetType = UNSET
    requests: Annotated[
        RequestsFile | UnsetType,
        words(
            "of [tasks](tasks.md) and of the protocol `lm-eval`: `requests.parquet`'s `name`, `rows` "
            "and `sha256`, a row for each context and continuation with its log-likelihood, or for "
            "each page; how many windows were `shortened` from the left to what the model reads at a "
            "time; the `prefix`: the token before what nothing precedes, and whether it `is` the "
            "tokenizer's BOS or EOS"
        ),
    ] = UNSET
    pages: Annotated[
        Pages | UnsetType,
        words(
            "of the protocol `lm-eval`: how many `pages`, `words` and `bytes` WikiText has before it "
            "is detokenized, and the harness's `metrics` of them, a base's with `_base` behind"
        ),
    ] = UNSET
    tasks: Annotated[
        Tasks | UnsetType,
        words(
            "of [tasks](tasks.md): how the `harness` was asked and its version; of each of the "
            "`tasks` how many `questions` and `requests` it has, the sha256 of their texts, its "
            "version, its examples, its data set with fingerprints, and the harness's `metrics` with "
            "their `stderr`; of each of the `groups` its tasks and metrics; against a base the same "
            "of the `base`, of each metric the `pairs` of questions (`difference` of the means, "
            "questions `lost` and `gained`, McNemar's exact `p`, answers `changed`), and the `kld` of "
            "the answers' tokens; `answers.parquet`'s `name`, `rows` and `sha256`"
        ),
    ] = UNSET
    worst: Annotated[
        list[WorstTarget] | UnsetType,
        words(
            "against a base: the ten targets of largest KLD: where they stand, both probabilities, "
            "both likeliest ids, their texts and the text before"
        ),
    ] = UNSET
    sha256: Annotated[
        Sha256,
        words("of all else in the record"),
    ]

    @property
    def status(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object that this was read from, with the fields that no section declares."""
        return self.__dict__["document"]


class Running(Record, frozen=True, kw_only=True, tag_field="status", tag="running"):
    """A run that is under way, or was killed."""

    identity: _Identity
    schedule: _Schedule
    parts: _Parts


class _Scored(Record, frozen=True, kw_only=True):
    """A run, or a share of one, that is done."""

    engine: _Engine
    seconds: _Seconds
    scores: _Scores

    def __post_init__(self) -> None:
        _require("seconds", self.seconds, _STAGES)


class Done(_Scored, frozen=True, kw_only=True, tag_field="status", tag="done"):
    """A whole run that is done."""

    metrics: _Metrics

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("metrics", self.metrics, _ALWAYS)


class ShardDone(_Scored, frozen=True, kw_only=True, tag_field="status", tag="shard"):
    """A share of a run that is done."""

    identity: _Identity
    schedule: _Schedule
    shard: _Shard


class Invalid(Record, frozen=True, kw_only=True, tag_field="status", tag="invalid"):
    """A run whose scores can't be true."""

    reason: _Reason


AnyStatus = Running | Done | ShardDone | Invalid
_KINDS = {str(kind.__struct_config__.tag): kind for kind in (Running, Done, ShardDone, Invalid)}
STATUSES = tuple(_KINDS)
# The type of each section, with its words.
SECTIONS: dict[str, Any] = {
    name: hint
    for name, hint in get_type_hints(Record, include_extras=True).items()
    if not name.startswith("__")
}


def read_document(document: dict[str, Any]) -> Record:
    """The typed record of a JSON object, which it keeps as its `document`. Raises ValueError that names
    the field that doesn't fit."""
    record = decode(document, AnyStatus)
    record.__dict__["document"] = document
    return record


def needed_by(section: str) -> tuple[str, ...]:
    """The statuses whose records must have a section."""
    return tuple(
        status
        for status, kind in _KINDS.items()
        if any(f.name == section and f.required for f in msgspec.structs.fields(kind))
    )
