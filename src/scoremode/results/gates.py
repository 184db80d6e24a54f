"""Gates: limits on a comparison's metrics, for automation."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from scoremode.errors import UsageError
from scoremode.results.record.outcome import Survival
from scoremode.results.record.section import Metric, Section
from scoremode.results.statistics.verdict import limit_verdict

if TYPE_CHECKING:
    from scoremode.results.record.definition import Done

# What is held against the limit: the number itself, or the end of its 95 % interval that is worse.
GateOn = Literal["value", "upper"]
# The metric of each gate, by its key.
_WORDS = {
    "kld": "the mean KLD",
    "kld_p99": "the KLD's 99th percentile",
    "ppl_ratio": "PPL / base",
    "tv": "the total variation",
    "acceptance": "the acceptance",
    "top1": "the share of same top-1",
    "half_life": "the half-life in tokens",
}
_SHARES = ("max_tv", "min_acceptance", "min_top1")


@dataclass(frozen=True)
class Gate:
    """A limit, and what was held against it.

    - `name`: of the gate, such as `max_kld`; `metric`: what it is about, in words.
    - `value`: the metric's; `on`: what is judged: the `value`, or the `upper` bound of its interval
      (for a least share the lower one), with `bound` that number, None where there is no interval.
    - `met`: whether the limit holds; never where there is nothing to judge, and `note` says why.
    - `ci95`: the metric's interval, None where there is none; `typed`: the limit as the user wrote it,
      None where nobody did. Neither is a part of a record.
    - `chance`: why another text of this length may judge otherwise, None where it hardly would.
    """

    name: str
    metric: str
    limit: float
    value: float
    on: GateOn
    bound: float | None
    met: bool
    note: str | None = None
    ci95: tuple[float, float] | None = None
    typed: str | None = None
    chance: str | None = None

    @property
    def flag(self) -> str:
        """The flag that sets it, with its limit."""
        return f"--{self.name.replace('_', '-')} {self.typed or format(self.limit, 'g')}"

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in ("ci95", "typed")}

    def __str__(self) -> str:
        word = "met" if self.met else "not met"
        found = f"{self.metric} is {self.value:.6g}"
        if self.bound is None:
            found += f", and has no bound: {self.note}"
        elif self.on == "upper":
            end = "lower" if self.name.startswith("min") else "upper"
            found += f", its {end} bound {self.bound:.6g}"
        if self.chance is not None:
            found += f"; {self.chance}"
        return f"gate {word}: {self.flag}: {found}"


def _half_life(found: Survival) -> Metric:
    """The half-life, in tokens. Where no window or reply is long enough to show it, or an end of its
    interval, that is at least the longest one's tokens."""
    curve = found.sampled
    low, high = curve.ci95 or (None, None)
    ends = None if curve.ci95 is None else (low or curve.longest, high or curve.longest)
    return Metric(curve.half_life or curve.longest, ends, found.n, curve.note)


def by_chance(name: str, limit: float, found: Metric) -> str | None:
    """Words on a gate that another text of this length may judge otherwise, since its metric's interval
    holds the limit. None where it doesn't, and where there is no interval."""
    if found.ci95 is None or name == "min_half_life":
        return None
    verdict = limit_verdict(name.partition("_")[2], found, limit)
    if verdict.kind != "undecided":
        return None
    return f"not decidable with this text: {verdict.more(what=f'it from {limit:g}')}"


def bare(targets: int) -> str:
    """Words on a gate that a value without an interval was held against."""
    return f"by a value without an interval ({targets:,} target{'s' * (targets != 1)})"


class Compared(Section, frozen=True, kw_only=True):
    """The sections of a comparison that gates are held against."""

    metrics: dict[str, Metric]
    distribution: dict[str, dict[str, float]] | UnsetType = UNSET
    survival: Survival | UnsetType = UNSET


@dataclass(frozen=True)
class Gates:
    """Limits, None for none. `max_kld`, `max_kld_p99` in nats, `min_half_life` in tokens; those of
    `_SHARES` shares.

    - `on`: what is judged, the value or the worse end of its 95 % interval.
    - `typed`: gate → how the user wrote its limit, for messages.

    Raises UsageError for what is no limit, and for `on` the upper bound of nothing.
    """

    max_kld: float | None = None
    max_kld_p99: float | None = None
    max_ppl_ratio: float | None = None
    max_tv: float | None = None
    min_acceptance: float | None = None
    min_half_life: float | None = None
    min_top1: float | None = None
    on: GateOn = "value"
    typed: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name, value in self._limits().items():
            typed = self.typed.get(name, f"{value:g}")
            gate = f"--{name.replace('_', '-')} {typed}"
            # Infinity would bound nothing, and is no JSON.
            if value < 0 or not math.isfinite(value):
                raise UsageError(f"{gate}: must be at least 0 and finite")
            if name in _SHARES and value > 1:
                most = "100 %" if typed.endswith("%") else f"1, as {typed}% would be"
                raise UsageError(f"{gate}: a share is at most {most}")
        if self.on == "upper" and not self:
            *others, last = (f"--{name.replace('_', '-')}" for name in self.names())
            raise UsageError(
                f"--gate-on upper: there is no gate to judge; give {', '.join(others)} or {last}"
            )

    def __bool__(self) -> bool:
        return bool(self._limits())

    @classmethod
    def names(cls) -> list[str]:
        """The gates that there are."""
        return [each.name for each in fields(cls) if each.name not in ("on", "typed")]

    def _limits(self) -> dict[str, float]:
        limits = {name: getattr(self, name) for name in self.names()}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def judge(self, found: "Done | Compared") -> list[Gate]:
        """Every gate that is set, against a comparison's metrics."""
        metrics = found.metrics
        n, judged = (metrics.get("kld") or metrics["nll"]).n, dict(metrics)
        if spread := (found.distribution or {}).get("kld"):
            # A run from before percentiles were metrics has it in `distribution` alone.
            p99 = Metric(spread["99"], None, n, "its run made no interval")
            judged = {"kld_p99": p99, **metrics}
        beyond = None
        if survival := found.survival:
            judged["half_life"] = _half_life(survival)
            if survival.sampled.half_life is None:
                longest = f"{survival.sampled.longest:,} tokens"
                beyond = f"it is longer than the longest of the {survival.units}, {longest}"
        for name in self._limits():
            if (key := name.partition("_")[2]) not in judged:
                raise UsageError(
                    f"--{name.replace('_', '-')}: the run has no number of {_WORDS[key]}, but at most "
                    "a bound: a server gives the likeliest tokens alone"
                )
        return [
            self._gate(
                name, limit, _WORDS[key], judged[key], n, beyond if key == "half_life" else None
            )
            for name, limit in self._limits().items()
            for key in [name.partition("_")[2]]
        ]

    def _gate(
        self, name: str, limit: float, words: str, metric: Metric, n: int, beyond: str | None
    ) -> Gate:
        """`n`: the text's targets; `beyond`: that the metric is more than its `value`, which then meets
        no higher limit."""
        least = name.startswith("min")
        value, bound, note = metric.value, metric.value, None
        if self.on == "upper":
            bound = None if metric.ci95 is None else metric.ci95[0 if least else 1]
            note = metric.note if bound is None else None
        if beyond and value < limit:
            bound, note = None, beyond
        met = bound is not None and (bound >= limit if least else bound <= limit)
        chance = by_chance(name, limit, metric)
        if self.on == "value" and metric.ci95 is None and bound is not None:
            chance = bare(n)
        more = metric.ci95, self.typed.get(name), chance
        return Gate(name, words, limit, value, self.on, bound, met, note, *more)
