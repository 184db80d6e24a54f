"""Verdicts: what an interval shows of a model beside its base, and how much text would show more.

One rule for every output. A metric's distance from the base is 0 for the base itself: the logarithm of
a ratio of perplexities, a KLD, 1 less a share of agreement. Its 95 % interval is held against a margin,
below which a distance is of no consequence:

- `equivalent`: the whole interval lies within the margin. These are two one-sided tests (Schuirmann, "A
  comparison of the two one-sided tests procedure and the power approach for assessing the equivalence
  of average bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15, 1987).
- `worse`: of what may lie on either side of 0 (a ratio, a difference between two runs), the whole
  interval lies beyond 0, and not within the margin. A KLD, which is never below 0 and hardly ever 0, is
  worse where the whole interval lies beyond the margin. `better` is the other way around.
- `undecided`: anything else.

Each one-sided test is at a nominal 2.5 %, that of the interval which is shown: a bootstrap's interval
is a little too narrow, and so neither a wrong `worse` nor a wrong `equivalent` comes in more than 5 %
of texts (`benchmarks/coverage.py --verdicts`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

from scoremode.results.metrics import METRIC, METRICS, MetricSpec
from scoremode.results.record.section import Metric, decode, value_at
from scoremode.results.statistics.bootstrap import WHOLE
from scoremode.results.statistics.pairs import LEVEL, mcnemar

Kind = Literal["better", "equivalent", "worse", "undecided"]
_Z = NormalDist().inv_cdf(0.975)
# Half an interval's width → the distance that is told from 0 in 80 % of texts.
_POWER = 1 + NormalDist().inv_cdf(0.8) / _Z
# Of the accuracy of tasks: a point.
ANSWERS_MARGIN = 0.01
# Below so many whole conversations → by how much the upper end of what is never below 0 is moved out:
# few of them rarely include one of the hardest (`benchmarks/coverage.py --chats`).
_REACH = ((15, 1.8), (30, 1.5), (60, 1.3), (200, 1.15))


@dataclass(frozen=True)
class Verdict:
    """What one metric shows; `margin`, `by` and `detectable` are distances, of a ratio as a share.

    - `metric`: its key; `unit`: `ratio`, `nats` or `share`. `two_sided`: whether it may be better.
    - `by`: of `worse` and `better`, by how much at least.
    - `detectable`: the smallest distance, from 0 or of a KLD from the margin, that this text shows with
      a probability of 80 %.
    - `needed`: of `undecided`, how many targets (of tasks questions) would decide; None where no text
      does, and `note` says why.
    """

    metric: str
    unit: str
    two_sided: bool
    margin: float
    value: float
    ci95: tuple[float, float] | None
    n: int
    kind: Kind
    by: float | None = None
    detectable: float | None = None
    needed: int | None = None
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ci95": None if self.ci95 is None else list(self.ci95)}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "Verdict":
        ends = found["ci95"]
        return cls(**{**found, "ci95": ends and (ends[0], ends[1])})

    @property
    def short(self) -> str:
        """The verdict in a cell: `worse by ≥0.0119 nats`, `within ±1%`, `not decidable`."""
        if self.kind == "equivalent":
            return f"within {self._margin}"
        return "not decidable" if self.by is None else f"{self.kind} by ≥{self._amount(self.by)}"

    def words(self, base: str = "", of: str = "target") -> str:
        """The verdict in a sentence; `base`: what is compared with, "" where that has been said; `of`:
        what `n` counts."""
        if self.kind == "equivalent":
            return f"equivalent{f' to {base}' if base else ''} within {self._margin}"
        if self.by is not None:
            than = f" than {base}" if base else ""
            return f"{self.kind}{than} by at least {self._amount(self.by)}"
        return f"not decidable with this text: {self.more(of)}"

    def more(self, of: str = "target", what: str = "") -> str:
        """How much text would decide what is `undecided`, or why none does; `what`: it would tell, the
        margin by default."""
        if self.needed is None:
            return str(self.note)
        # Two digits: nobody knows more of it.
        digit = 10 ** max(0, len(str(self.needed)) - 2)
        about = math.ceil(self.needed / digit) * digit
        return f"about {about:,} {of}s would tell {what or self._margin}"

    @property
    def _margin(self) -> str:
        return f"{'±' * self.two_sided}{self._amount(self.margin)}"

    def _amount(self, distance: float) -> str:
        number = distance if self.unit == "nats" else 100 * distance
        if distance == self.by:
            # At least as much: never rounded up.
            step = 10.0 ** (math.floor(math.log10(number)) - 2)
            number = math.floor(number / step) * step
        said = f"{number:.3g}"
        if self.unit == "share":
            return f"{said} point{'s' * (said != '1')}"
        return f"{said} nats" if self.unit == "nats" else f"{said}%"


def verdicts(
    metrics: Mapping[str, Metric],
    margin: float | None = None,
    *,
    floor: float = 0.0,
    clusters: int | None = None,
) -> list[Verdict]:
    """What a model's metrics show beside its base, the most telling first.

    - `margin`: of all of them; None for each one's own (`MetricSpec.margin`).
    - `floor`: the KLD of the base from itself by another arithmetic; nothing within it is worse.
    - `clusters`: how many whole conversations the intervals are of; None where they are of a text.
    """
    found = []
    for spec in sorted(METRICS, key=lambda spec: -spec.importance):
        if spec.margin is not None and (metric := metrics.get(spec.key)) is not None:
            least = floor if spec.key == "kld" else 0.0
            m = spec.margin if margin is None else margin
            found.append(_judged(spec, metric, m, floor=least, clusters=clusters))
    return found


def record_verdicts(document: Mapping[str, Any], margin: float | None = None) -> list[Verdict]:
    """The `verdicts` of a finished run's record, or that on all its tasks together; none of one without
    a base."""
    if "tasks" in document:
        return _tasks_verdicts(document["tasks"]["tasks"].values(), margin)
    intervals = document.get("intervals") or {}
    return verdicts(
        {name: decode(metric, Metric) for name, metric in document.get("metrics", {}).items()},
        margin,
        floor=value_at(document, "noise_floor.kld.value", 0.0),
        clusters=intervals.get("blocks") if intervals.get("block_length") == WHOLE else None,
    )


def _tasks_verdicts(tasks: Iterable[Mapping[str, Any]], margin: float | None) -> list[Verdict]:
    """Of each task the first metric whose answers are right or wrong."""
    pairs = [
        next((pair for pair in (task.get("pairs") or {}).values() if "lost" in pair), None)
        for task in tasks
    ]
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return []
    lost, gained = (sum(pair[of] for pair in known) for of in ("lost", "gained"))
    n = sum(pair["difference"]["n"] for pair in known)
    return [answers_verdict(lost, gained, n, ANSWERS_MARGIN if margin is None else margin)]


def runs_verdict(
    key: str, found: Metric, margin: float | None = None, tied: str | None = None
) -> Verdict:
    """What a run shows beside another: from the difference of a metric, or the perplexities' ratio.

    `tied`: why the two are not told apart, whatever their interval says by itself.
    """
    spec = METRIC[key]
    assert spec.margin is not None
    m = spec.margin if margin is None else margin
    return _judged(spec, found, m, of_runs=True, tied=tied)


def limit_verdict(key: str, found: Metric, limit: float) -> Verdict:
    """What a metric shows beside a limit: `equivalent` is within, `worse` is beyond it."""
    spec = METRIC[key]
    margin = limit - 1 if spec.kind == "ratio" else _distance(spec, limit)
    return _judged(spec, found, margin, is_limit=True)


def answers_verdict(lost: int, gained: int, n: int, margin: float = ANSWERS_MARGIN) -> Verdict:
    """What right and wrong answers to the same `n` questions show, of any number of tasks together.

    Under equal models a question that flips does so either way alike, in every task: so the sums over
    all tasks are McNemar's, exactly. The interval is of the difference of the accuracies, with half a
    question more in each cell (Agresti and Min, "Simple improved confidence intervals for comparing
    matched proportions", Statistics in Medicine 24, 2005).
    """
    change = (gained - lost) / (n + 2)
    error = math.sqrt(((lost + gained + 1) / (n + 2) - change**2) / (n + 2))
    low, high = (change + side * _Z * error for side in (-1, 1))
    p = mcnemar(lost, gained)
    return _decided(
        partial(Verdict, "accuracy", "share", True, margin, (gained - lost) / n, (low, high), n),
        (-change, -high, -low),
        margin,
        tied=None if p < LEVEL else f"{lost:,} lost, {gained:,} gained: McNemar's p is {p:.2g}",
    )


def _judged(
    spec: MetricSpec,
    found: Metric,
    margin: float,
    *,
    of_runs: bool = False,
    is_limit: bool = False,
    floor: float = 0.0,
    clusters: int | None = None,
    tied: str | None = None,
) -> Verdict:
    two_sided = (spec.kind == "ratio" or of_runs) and not is_limit
    unit = "ratio" if spec.kind == "ratio" else "nats" if spec.unit else "share"
    made = partial(Verdict, spec.key, unit, two_sided, margin, found.value, found.ci95, found.n)
    if found.ci95 is None:
        return made("undecided", note=found.note)
    value, *ends = (_distance(spec, x, of_runs=of_runs) for x in (found.value, *found.ci95))
    low, high = min(ends), max(ends)
    if clusters is not None and not two_sided:
        high = value + (high - value) * next((by for n, by in _REACH if clusters < n), 1.0)
    limit = math.log1p(margin) if unit == "ratio" else margin
    return _decided(made, (value, low, high), limit, floor=floor, tied=tied)


def _distance(spec: MetricSpec, value: float, *, of_runs: bool = False) -> float:
    """How much worse than the base's, or than the other run's: 0 for as good."""
    if spec.kind == "ratio":
        return math.log(value)
    if spec.better == "higher":
        return (0.0 if of_runs else 1.0) - value
    return value


def _decided(
    made: "partial[Verdict]",
    at: tuple[float, float, float],
    margin: float,
    *,
    floor: float = 0.0,
    tied: str | None = None,
) -> Verdict:
    """`at`: the distance and its interval, on a scale where twice the distance is twice as far."""
    value, low, high = at
    _, unit, two_sided, *_ = made.args
    half = max(high - value, value - low)

    def shown(distance: float) -> float:
        return math.expm1(distance) if unit == "ratio" else distance

    made = partial(made, detectable=shown(_POWER * half))
    if -margin <= low and high <= margin if two_sided else high <= margin:
        return made("equivalent")
    if two_sided:
        beyond = low > 0 or high < 0
        if beyond and tied is None:
            return made("worse", by=shown(low)) if low > 0 else made("better", by=shown(-high))
        # An interval that is narrower than the margin can't hold both 0 and the margin.
        reach, aim = 2 * half, margin
        note = tied if beyond else None if margin > 0 else "the margin is 0"
    else:
        if low > max(margin, floor):
            return made("worse", by=shown(low))
        # Which side of the margin it is on, if it is as far off as measured.
        reach, aim = _POWER * half, abs(value - margin)
        note = None if aim > 0 else "the margin is what was measured"
        if floor >= max(margin, value):
            note = f"in another arithmetic the base is {floor:.3g} nats away from itself"
    if note is not None:
        return made("undecided", note=note)
    return made("undecided", needed=math.ceil(made.args[6] * (reach / aim) ** 2))
