"""Sections of a record on what came out: intervals, groups, gates, early stopping, files of it.

Sources: docs/record.md, which is made of these types and of `results.record.definition`.
"""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from scoremode.results.record.section import Count, Fraction, Metric, Positive, Section, Sha256


class IdentityDevice(Section, frozen=True, kw_only=True):
    type: str
    name: str


class IdentityEngine(Section, frozen=True, kw_only=True):
    device: IdentityDevice


class IdentityShard(Section, frozen=True, kw_only=True):
    number: Positive
    of: Positive


class Identity(Section, frozen=True, kw_only=True):
    checkpoint: str | UnsetType = UNSET
    plan: str | UnsetType = UNSET
    conversations: dict[str, Any] | UnsetType = UNSET
    engine: IdentityEngine
    versions: dict[str, str] | UnsetType = UNSET
    reference: dict[str, Any] | UnsetType = UNSET
    full: bool | UnsetType = UNSET
    draft: float | UnsetType = UNSET
    noise_floor: str | None = None
    keep: str | None = None
    token_text: bool | UnsetType = UNSET
    labels: Sha256 | UnsetType = UNSET
    tasks: dict[str, Any] | UnsetType = UNSET
    confident: Fraction | UnsetType = UNSET
    shard: IdentityShard | UnsetType = UNSET


class GroupIntervals(Section, frozen=True, kw_only=True):
    blocks: Count
    block_length: Positive
    rule: str
    shortest: Positive
    autocorrelation: dict[str, float | None]


class Intervals(Section, frozen=True, kw_only=True):
    blocks: Count | UnsetType = UNSET
    block_length: Positive
    rule: str | UnsetType = UNSET
    covers: Fraction | UnsetType = UNSET
    shortest: Positive | UnsetType = UNSET
    autocorrelation: dict[str, float | None] | UnsetType = UNSET
    groups: GroupIntervals | UnsetType = UNSET


class Look(Section, frozen=True, kw_only=True):
    windows: Positive
    value: float
    ci95: tuple[float, float] | None
    met: bool


class Stopping(Section, frozen=True, kw_only=True):
    rule: str
    seed: Count
    method: str
    after: Positive
    of: Positive
    met: bool
    looks: list[Look]


class Gate(Section, frozen=True, kw_only=True):
    name: str
    metric: str
    limit: float
    value: float
    on: Literal["value", "upper"]
    bound: float | None
    met: bool
    note: str | None
    chance: str | UnsetType | None = UNSET


class Group(Section, frozen=True, kw_only=True, rename={"from_": "from"}):
    group: str
    from_: float | UnsetType = UNSET
    to: float | None = None
    n: Count
    share: float
    kld: Metric | UnsetType = UNSET
    ppl_ratio: Metric | UnsetType = UNSET
    ppl: Metric | UnsetType = UNSET
    top1: Metric | UnsetType = UNSET
    acceptance: Metric | UnsetType = UNSET
    confident_flips: Metric | UnsetType = UNSET
    halved: Metric | UnsetType = UNSET
    entropy_change: Metric | UnsetType = UNSET
    kld_p99: Metric | UnsetType = UNSET
    kld_p999: Metric | UnsetType = UNSET


class Thresholds(Section, frozen=True, kw_only=True):
    confident: Fraction


class SurvivalCurve(Section, frozen=True, kw_only=True):
    half_life: Positive | None
    ci95: tuple[Positive | None, Positive | None] | None
    note: str | None
    longest: Positive
    tokens: list[Positive]
    whole: list[float]


class SampledSurvival(SurvivalCurve, frozen=True, kw_only=True):
    by_base: bool


class GreedySurvival(SurvivalCurve, frozen=True, kw_only=True):
    parted: Count
    stopped: Count
    unlike: Count
    identical: Metric | None


class Survival(Section, frozen=True, kw_only=True):
    units: Literal["replies", "windows"]
    n: Positive
    sampled: SampledSurvival
    greedy: GreedySurvival | UnsetType = UNSET
    greedy_note: str | UnsetType = UNSET


class NoiseFloor(Section, frozen=True, kw_only=True):
    change: str | UnsetType = UNSET
    words: str
    kld: Metric
    ppl_ratio: Metric | UnsetType = UNSET
    top1: Metric | UnsetType = UNSET
    distribution: dict[str, float] | UnsetType = UNSET
    resolves: bool
    engine: dict[str, Any] | UnsetType = UNSET


class Part(Section, frozen=True, kw_only=True):
    sha256: Sha256
    states: Sha256 | UnsetType = UNSET


class ScoresFile(Section, frozen=True, kw_only=True):
    name: str
    rows: Positive
    sha256: Sha256
    token_text: bool | UnsetType = UNSET


class WorstTarget(Section, frozen=True, kw_only=True):
    window: Count
    position: Positive
    index: Count
    target: Count
    p_base: Fraction
    p_model: Fraction
    kld: float
    base_top1: Count
    top1: Count
    target_text: str | UnsetType = UNSET
    base_top1_text: str | UnsetType = UNSET
    top1_text: str | UnsetType = UNSET
    context: str | UnsetType = UNSET
