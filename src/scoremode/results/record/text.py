"""Sections of a record on what is scored: the text, the protocol and plan, shares of a run, tasks.

Sources: docs/record.md, which is made of these types and of `results.record.definition`.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from scoremode.results.record.model import Device
from scoremode.results.record.section import Count, Fraction, Metric, Positive, Section, Sha256

ContextLength = Annotated[int, Meta(ge=2, le=2**31 - 1)]


class CorpusText(Section, frozen=True, kw_only=True):
    rule: str
    sha256: str
    bytes: Count


class Generated(Section, frozen=True, kw_only=True):
    base: dict[str, Any]
    engine: dict[str, Any]
    sampling: dict[str, Any]
    template: dict[str, Any] | UnsetType = UNSET
    record_sha256: Sha256


class Template(Section, frozen=True, kw_only=True):
    source: str
    sha256: str
    arguments: dict[str, Any]
    date: str | None
    given: bool


class TurnTargets(Section, frozen=True, kw_only=True):
    least: Count
    median: float
    most: Count


class Conversations(Section, frozen=True, kw_only=True):
    template: Template | None
    read: Count
    ends: list[Count]
    bad_rows: Count
    bad: list[str]
    long: Count
    lost: Count
    turns: Count
    apart: Count
    unended: Count
    unprompted: Count
    without_calls: Count | UnsetType = UNSET
    straddling: Count
    respelled: Count | UnsetType = UNSET
    unmarked: Count | UnsetType = UNSET
    outside: Count | UnsetType = UNSET
    behind: Count | UnsetType = UNSET
    opening: Count | UnsetType = UNSET
    prompted: Count | UnsetType = UNSET
    beyond: Count | UnsetType = UNSET
    turn_targets: TurnTargets | UnsetType = UNSET


class CorpusFile(Section, frozen=True, kw_only=True):
    source: str


class Corpus(Section, frozen=True, kw_only=True):
    name: str
    source: str | None = None
    source_sha256: str | None = None
    rows: Count | None
    row_limit: Count | None
    text_field: str | UnsetType = UNSET
    row_seed: Count | UnsetType = UNSET
    preset: str | UnsetType = UNSET
    separator: str | UnsetType = UNSET
    group_by: str | UnsetType = UNSET
    text: CorpusText
    files: list[CorpusFile] | UnsetType = UNSET
    joined: str | UnsetType = UNSET
    generated: Generated | UnsetType = UNSET
    conversations: Conversations | UnsetType = UNSET


class Protocol(Section, frozen=True, kw_only=True):
    name: str
    text: str | UnsetType = UNSET
    bos: str | UnsetType = UNSET
    bos_at: str | UnsetType = UNSET
    context_length: ContextLength
    stride: Positive
    scored: str
    tail: str | UnsetType = UNSET
    short_text: str | UnsetType = UNSET
    min_contexts: Count | UnsetType = UNSET
    max_windows: Positive | None = None
    all_windows_required: bool | UnsetType = UNSET
    vocabulary: str
    average: str | UnsetType = UNSET
    stop_when: str | UnsetType = UNSET
    seed: Count | UnsetType = UNSET
    long: str | UnsetType = UNSET
    sha256: str | UnsetType = UNSET


class PlannedWindows(Section, frozen=True, kw_only=True):
    windows: Positive
    scored: Positive
    unique: Positive
    sha256: str
    conversations: Positive | UnsetType = UNSET


class Plan(Section, frozen=True, kw_only=True):
    tokens: Count
    windows: Positive
    scored: Positive
    unique: Positive
    stream_bos: Count | None
    window_bos: Count | None
    tokens_sha256: str
    sha256: str
    conversations: Positive | UnsetType = UNSET
    planned: PlannedWindows | UnsetType = UNSET
    labels: dict[str, Count] | UnsetType = UNSET


class Schedule(Section, frozen=True, kw_only=True):
    pass_windows: Positive
    batch_windows: Positive
    chunk_tokens: Positive | UnsetType = UNSET
    pass_tokens: Positive | UnsetType = UNSET
    batch_tokens: Positive | UnsetType = UNSET
    pads: bool | UnsetType = UNSET
    split: Positive | UnsetType = UNSET
    row_tokens: Positive | UnsetType = UNSET


class ScheduleChange(Section, frozen=True, kw_only=True):
    after_passes: Count
    batch_windows_before: Positive
    reason: str


class Share(Section, frozen=True, kw_only=True):
    """A share of a run. `passes` and `windows`: the first, and the one behind the last."""

    number: Positive
    passes: tuple[Count, Count]
    of_passes: Positive
    windows: tuple[Count, Count]
    targets: Positive


class Shard(Share, frozen=True, kw_only=True):
    of: Positive
    batches_sha256: Sha256


class MergedShard(Share, frozen=True, kw_only=True):
    run: str
    record_sha256: Sha256
    scores_sha256: Sha256
    device: Device
    processes: Positive
    command: list[str]
    created: str | UnsetType = UNSET
    finished: str | UnsetType = UNSET
    seconds: dict[str, float]


class Merged(Section, frozen=True, kw_only=True):
    shards: list[MergedShard]


class Calibration(Section, frozen=True, kw_only=True):
    name: str
    source: str
    source_sha256: Sha256
    text_field: str
    documents: Positive
    tokens: Count
    ngram: Positive
    targets: Count
    share: Fraction
    labels: dict[str, Fraction] | UnsetType = UNSET


class Prefix(Section, frozen=True, kw_only=True, rename={"token_kind": "is"}):
    id: Count
    token: str | None
    # JSON's `is`: the tokenizer's BOS or EOS.
    token_kind: str


class RequestsFile(Section, frozen=True, kw_only=True):
    name: str
    rows: Positive
    sha256: Sha256
    shortened: Count
    prefix: Prefix | None = None


class DataSet(Section, frozen=True, kw_only=True):
    path: str | None
    name: str | None
    fingerprints: dict[str, str]


class BaseTask(Section, frozen=True, kw_only=True):
    """A task's or a group's metrics of the base, and their standard errors."""

    metrics: dict[str, float]
    stderr: dict[str, float]


class Pairs(Section, frozen=True, kw_only=True):
    """A metric of a task's questions, of model and base in pairs."""

    difference: Metric
    lost: Count | UnsetType = UNSET
    gained: Count | UnsetType = UNSET
    p: Fraction | UnsetType = UNSET
    changed: Count | UnsetType = UNSET


class Judged(BaseTask, frozen=True, kw_only=True):
    """A task's or a group's metrics, and the base's."""

    base: BaseTask | UnsetType = UNSET
    pairs: dict[str, Pairs] | UnsetType = UNSET


class Task(Judged, frozen=True, kw_only=True):
    questions: Positive
    requests: Positive
    requests_sha256: Sha256
    version: str
    num_fewshot: Count
    dataset: DataSet
    kld: Metric | UnsetType = UNSET


class TaskGroup(Judged, frozen=True, kw_only=True):
    tasks: list[str]


class Harness(Section, frozen=True, kw_only=True):
    lm_eval: str
    tasks: list[str]
    num_fewshot: Count | None
    limit: float | None
    chat: bool
    multiturn: bool
    system: str | None


class AnswersFile(Section, frozen=True, kw_only=True):
    name: str
    rows: Count
    sha256: Sha256


class Tasks(Section, frozen=True, kw_only=True):
    harness: Harness
    tasks: dict[str, Task]
    groups: dict[str, TaskGroup]
    answers: AnswersFile


class Pages(Section, frozen=True, kw_only=True):
    pages: Positive
    words: Positive
    bytes: Positive
    metrics: dict[str, Metric]
