"""Tells whether two computations of one model differ by more than rounding, and what it looks like.

A ladder's step from one engine to another computes the same model with other kernels. What rounding
explains is not known from its dtype: the same bfloat16 moves one model by 4e-5 nats and another by
1e-2. So it is measured on the model itself. The *noise* is the model computed once more another way,
on the same targets: float32 against the ladder's dtype, or, in float32, with another attention. A step
is judged by the ratio of its total variation to the noise's. Total variation is at most 1 a target, so
that no single target decides, and of the first order in the error; the KL divergence, of the second, is
often a few targets' alone.

**Where the limits come from.** Ratios of the total variation of two right computations to the noise's
(2-core EPYC with AVX-512 BF16, torch 2.13, vLLM 0.32, 2026-11-27). `lower end`: of the 95 % interval
over windows, which is what is held against the limit.

| pair | ladder in | n | ratio | lower end |
|---|---|---|---|---|
| torch, sdpa / eager attention, 19 tiny random models × 9 seeds | bfloat16 | 171 | 0.48-0.97 | 0.94 |
| torch, float32 / eager attention, the same models | bfloat16 | 171 | 0.85-1.27 | 1.16 |
| the same two | float16 | 342 | 0.26-1.61 | 1.16 |
| torch, one window a micro-batch, 21 tiny random models × 9 seeds | both | 378 | 0 | 0 |
| torch / vLLM, demo model, SmolLM2-135M | bfloat16 | 2 | 1.09, 1.11 | 1.08 |
| the same, logits of vLLM rounded as well | bfloat16 | 2 | 1.39, 1.42 | 1.37 |
| torch / vLLM, random Gemma 2, Mixtral, GPT-OSS, rounded logits | bfloat16 | 3 | 0.74-0.97 | 0.97 |
| torch / vLLM, demo model in W8A8 and FP8, inputs quantized | bfloat16 | 2 | 0.89-1.1 | 1.1 |
| torch / vLLM, demo model, SmolLM2, Mixtral | float32 | 3 | 1.1-1.8 | 1.8 |

- *Halves.* The noise is all of a dtype's rounding, and so are both steps': where these are independent
  the ratio is √2. The limit finds what adds one and a half times the noise's own divergence.
- *Rounded logits.* What rounding logits adds depends on their size: between 16 and 32 one of bfloat16
  is a multiple of 0.125. Nothing bounds it by what the layers add. Where the noise has no part of it
  (`Noise.of`), limits are half as wide again.
- *float32.* Another attention changes a part of the rounding alone, in some models no bit: hence the
  wider limit and the floor, twice the total variation of SmolLM2 in vLLM. A wrong step is a thousand
  times as far off: what bfloat16 hides is to be looked for in float32.
- *Quantized inputs.* A state at the border of two codes falls either way, in the noise as in the step:
  the FP8 demo's noise is 4e-4 in float32, a thousand times the dense one's, and 0.02 in bfloat16.
- *Mixtures of experts.* A router's near tie sends a token to another expert, and what follows it in the
  window reads that: one window may be 7 times as far off as the noise's worst. So one window alone is
  an alarm only where its log-probabilities are no longer the text's; else it takes three.
- *Bias.* Gemma 3 in float16 was off by 0.18 of the noise's rms beyond its interval, all else by 0.07.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import LIMITS as ROUNDING
from scoremode.results.statistics.agreement import MIN_TARGETS, correlate
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, student

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]
_PARTS = 8
# Targets, or windows, far off: fewer may be chance.
_FEW_TARGETS, _FEW_WINDOWS = 5, 3
_CORRELATION = 0.9
# By how much more rounded logits may be off.
_ROUNDED = 1.5
# Positions that see next to nothing.
_FIRST = 8
# A few targets: one of so many.
_FEW_SHARE = 50
# Of the likeliest ids, how many are a neighbour's where targets are shifted.
_SAME = 0.4


@dataclass(frozen=True)
class Limits:
    """How much more than the noise rounding in a dtype may be.

    - `floor`: the mean total variation that rounding may have where the noise has less.
    - `size`: the ratio of a step's total variation to the noise's, of all targets; `part`: the same in
      an eighth of the positions, and of three windows each to the noise's largest window.
    - `far`: of five targets each to the noise's largest, and of one window that is another text's.
    - `bias`: the mean difference of log-probabilities to the rms of the noise's.
    """

    floor: float
    size: float
    part: float
    far: float
    bias: float

    def rounded(self) -> "Limits":
        """The limits where the step's logits are rounded as well, and the noise's aren't."""
        return replace(self, size=_ROUNDED * self.size, part=_ROUNDED * self.part)


LIMITS = {
    "float32": Limits(5e-6, 4.0, 6.0, 10.0, 1.0),
    "float16": Limits(5e-5, 1.6, 2.0, 3.0, 0.25),
    "bfloat16": Limits(4e-4, 1.6, 2.0, 3.0, 0.25),
}


@dataclass(frozen=True, eq=False)
class Noise:
    """What rounding does to a model, target by target, float64 [N] each.

    - `tv`, `kld`: the total variation and the KL divergence of two computations.
    - `error`: the distance of their log-probabilities.
    """

    tv: Floats
    kld: Floats
    error: Floats

    @classmethod
    def of(cls, *parts: Scores) -> "Noise":
        """The noise of `parts`, independent of each other; each compared with the same model.

        Where the step's engine rounds its logits and the noise's computations don't, that is a part of
        its own: the step before beside itself with its logits rounded.
        """
        compared = [(s, s.against) for s in parts if s.against is not None]
        assert len(compared) == len(parts) > 0, "noise without a comparison"
        tv = np.stack([np.maximum(a.tv, 0) for _, a in compared])
        kld = np.stack([np.maximum(a.kld, 0) for _, a in compared])
        error = np.stack([s.logprob - a.base_logprob for s, a in compared])
        return cls(_root(tv), kld.sum(0), _root(error))


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums over the same targets, and the lower end of its 95 % interval."""

    value: float
    low: float


@dataclass(frozen=True)
class Alarm:
    """The judgment of a step.

    - `alarm`: it is more than rounding. `statistic`: which of `size`, `position`, `window`, `target`,
      `bias` says so first, or `size`; its `value`, in units of the noise, and its `limit`.
    - `tv`, `kld`: means over the targets, of the step; `noise_tv`, `noise_kld`: of the noise.
    - `pattern`: what it looks like: `shifted`, `windows`, `from position`, `grows`, `targets`,
      `everywhere`; None without an alarm.
    - `words`: all this for a person.
    """

    alarm: bool
    statistic: str
    value: float
    limit: float
    tv: float
    kld: float
    noise_tv: float
    noise_kld: float
    pattern: str | None
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class _Step:
    """A step beside its noise.

    - `tv`, `noise` float64 [N]: total variations, the noise's raised to the dtype's floor.
    - `cluster`: int [N], of targets that depend on each other, from 0 on without a gap.
    """

    scores: Scores
    tv: Floats
    noise: Floats
    cluster: Integers
    limits: Limits

    def ratio(self, where: NDArray[np.bool_] | slice = slice(None)) -> Ratio:
        """The ratio of the total variations of those targets."""
        _, cluster = np.unique(self.cluster[where], return_inverse=True)
        x, y = (np.bincount(cluster, weights=a[where]) for a in (self.tv, self.noise))
        value, n = float(x.sum() / y.sum()), len(x)
        if n < MIN_BLOCKS:
            return Ratio(value, value / 2)
        # By linearization, as of any ratio of sums over clusters.
        error = np.sqrt(n / (n - 1) * ((x - value * y) ** 2).sum()) / y.sum()
        return Ratio(value, float(value - student(n - 1) * error))


def judge_step(scores: Scores, noise: Noise, *, dtype: str, logits: str = "float32") -> Alarm:
    """Judges whether the difference of a step from the one before is what rounding explains.

    - `scores`: of the step, with a comparison with the step before.
    - `noise`: of the same model on the same targets.
    - `dtype`: the coarser of those that both steps compute in, a key of LIMITS.
    - `logits`: what the step's are rounded to, where the noise has no part of that.
    """
    against = scores.against
    assert against is not None and len(noise.tv) == len(scores), "a step without its noise"
    step = _made(scores, noise, LIMITS[dtype] if logits == "float32" else LIMITS[dtype].rounded())
    found = list(_statistics(step, noise, ROUNDING[dtype].bias))
    exceeded = [f for f in found if f[2] > f[3]]
    name, value, low, limit = exceeded[0] if exceeded else found[0]
    pattern, looks = _pattern(step) if exceeded else (None, "")
    words = (
        f"as rounding: {_times(value)} the noise's total variation (95 % at least {low:.3g}), of at "
        f"most {limit:g}"
    )
    if exceeded:
        words = f"{looks}: {_SAYS[name].format(times=_times(value), limit=limit)}"
    return Alarm(
        bool(exceeded),
        name,
        value,
        limit,
        tv=float(step.tv.mean()),
        kld=float(against.kld.mean()),
        noise_tv=float(noise.tv.mean()),
        noise_kld=float(noise.kld.mean()),
        pattern=pattern,
        words=words,
    )


_SAYS = {
    "size": "{times} the noise's total variation, and rounding explains {limit:g}",
    "position": "{times} the noise's total variation there, and rounding explains {limit:g}",
    "window": "{times} the noise's in its worst window, and rounding explains {limit:g}",
    "target": "{times} the noise's largest total variation, and rounding explains {limit:g}",
    "bias": "log-probabilities to one side by {times} the noise's rms, and rounding explains {limit:g}",
}


def _made(scores: Scores, noise: Noise, limits: Limits) -> _Step:
    assert scores.against is not None
    mean = float(noise.tv.mean())
    raised = noise.tv * max(1.0, limits.floor / mean) if mean > 0 else noise.tv + limits.floor
    _, cluster = np.unique(scores.window, return_inverse=True)
    if cluster[-1] + 1 < MIN_BLOCKS:
        # Few and long: stretches of them.
        cluster = np.arange(len(scores)) * 2 * MIN_BLOCKS // len(scores)
    return _Step(scores, np.maximum(scores.against.tv, 0), raised, cluster, limits)


def _statistics(
    step: _Step, noise: Noise, least_bias: float
) -> Iterator[tuple[str, float, float, float]]:
    """Each statistic: its name, its value, the lower end of what it may be, and its limit."""
    limits = step.limits
    size = step.ratio()
    yield "size", size.value, size.low, limits.size
    parts = [step.ratio(part) for part in _octiles(step.scores.position)]
    worst = max(parts, key=lambda r: r.low)
    yield "position", worst.value, worst.low, limits.part
    windows, counts, tv, noise_tv = _by_window(step)
    relative = tv / noise_tv.max()
    far = np.sort(relative[counts >= MIN_TARGETS])[::-1]
    few = float(far[_FEW_WINDOWS - 1]) if len(far) >= _FEW_WINDOWS else 0.0
    lost = any(_is_lost(step.scores, w) for w in windows[relative > limits.far])
    value = float(far[0]) if lost else few
    yield "window", value, value, limits.part
    targets = np.sort(step.tv / step.noise.max())[::-1]
    fifth = float(targets[_FEW_TARGETS - 1]) if len(targets) >= _FEW_TARGETS else 0.0
    yield "target", fifth, fifth, limits.far
    yield ("bias", *_bias(step, noise, least_bias), limits.bias)


def _bias(step: _Step, noise: Noise, least: float) -> tuple[float, float]:
    """The mean difference of log-probabilities, and its least distance from 0, by the noise's rms."""
    against = step.scores.against
    assert against is not None
    d = step.scores.logprob - against.base_logprob
    counts = np.bincount(step.cluster)
    sums = np.bincount(step.cluster, weights=d - d.mean())
    n = len(counts)
    error = np.sqrt(n / max(n - 1, 1) * (sums**2).sum()) / len(d)
    reach = student(max(n - 1, 7)) * max(error, float(d.std() / np.sqrt(len(d))))
    rms = float(np.sqrt((noise.error**2).mean()))
    unit = max(rms, least / step.limits.bias)
    return abs(float(d.mean())) / unit, (abs(float(d.mean())) - reach) / unit


def _by_window(step: _Step) -> tuple[Integers, Integers, Floats, Floats]:
    """Windows, their targets, and the mean total variations of the step and of the noise."""
    windows, of, counts = np.unique(step.scores.window, return_inverse=True, return_counts=True)
    tv, noise = (np.bincount(of, weights=a) / counts for a in (step.tv, step.noise))
    return windows, counts, tv, noise


def _octiles(position: Integers) -> list[NDArray[np.bool_]]:
    """Targets by position in their windows: eighths of all, or fewer parts, none of them small."""
    cuts = np.unique(np.quantile(position, np.linspace(0, 1, _PARTS + 1)[1:-1], method="lower"))
    of = np.searchsorted(cuts, position, side="left")
    parts = [of == i for i in range(len(cuts) + 1)]
    return [part for part in parts if part.sum() >= MIN_TARGETS] or [np.ones(len(position), bool)]


def _is_lost(scores: Scores, window: int) -> bool:
    """Tells whether a window's log-probabilities are no longer those of the step before."""
    assert scores.against is not None
    at = scores.window == window
    found = correlate(scores.logprob[at], scores.against.base_logprob[at])
    return int(at.sum()) >= MIN_TARGETS and (found is None or found < _CORRELATION)


def _pattern(step: _Step) -> tuple[str, str]:
    """What the difference looks like, and in words."""
    limit = step.limits.size
    windows, _, tv, noise = _by_window(step)
    relative = tv / noise
    heavy = windows[relative > limit * max(float(np.median(relative)), 1.0)]
    is_heavy = np.isin(step.scores.window, heavy)
    rest = ~is_heavy
    name, where = "everywhere", "everywhere"
    if 2 * len(heavy) < len(windows) and len(heavy) and step.ratio(rest).value <= limit:
        name, where = "windows", _named(heavy, len(windows))
    else:
        is_heavy = np.ones(len(rest), bool)
    if moved := _shifted(step.scores, is_heavy):
        return "shifted", f"shifted by one target ({'late' if moved < 0 else 'early'}), {where}"
    if name == "windows":
        return name, where
    # Without the largest of both.
    few = len(step.tv) // _FEW_SHARE
    ordinary = np.sort(step.tv)[: len(step.tv) - few].sum()
    if ordinary <= limit * np.sort(step.noise)[: len(step.tv) - few].sum():
        usual = max(float(step.noise.max()), float(np.sort(step.tv)[-_FEW_TARGETS]) / 2)
        return "targets", _few(step.scores, np.flatnonzero(step.tv > usual))
    return _along(step) or (name, where)


def _along(step: _Step) -> tuple[str, str] | None:
    """What a difference does along a window's positions, where it does something."""
    parts = _octiles(step.scores.position)
    if len(parts) < _PARTS // 2:
        return None
    level = np.log([step.ratio(part).value for part in parts])
    jumps = np.diff(level)
    cut = int(jumps.argmax()) + 1
    rise = float(level[cut:].mean() - level[:cut].mean())
    # A step, and not the first of a curve's rises.
    is_step = jumps[cut - 1] > 0.7 * rise and np.ptp(level[cut:]) < 0.5 * rise
    begin = _begin(step, parts[cut - 1] | parts[cut])
    # Behind the first tokens, which have nothing to attend to, all may be alike.
    if rise > np.log(1.5) and is_step and begin > _FIRST:
        return "from position", f"from position {begin} on"
    quarter = len(parts) // 4
    first, last = np.exp(level[:quarter].mean()), np.exp(level[-quarter:].mean())
    if last > 1.5 * first and (jumps > 0).sum() >= 0.7 * len(jumps):
        return "grows", f"grows with the position ({_times(first)} the noise, then {_times(last)})"
    return None


def _begin(step: _Step, where: NDArray[np.bool_]) -> int:
    """The position from which on a step differs: that which parts those of `where` best in two."""
    positions, of = np.unique(step.scores.position[where], return_inverse=True)
    tv, noise = (np.bincount(of, weights=a[where]) for a in (step.tv, step.noise))
    level = np.log(tv + 1e-30) - np.log(noise + 1e-30)
    n = np.arange(1, len(level))
    before = np.cumsum(level)[:-1]
    between = (before - n * level.mean()) ** 2 * (1 / n + 1 / n[::-1])
    return int(positions[int(between.argmax()) + 1])


def _shifted(scores: Scores, where: NDArray[np.bool_]) -> int:
    """-1 or 1 where these targets have the likeliest ids of the one before or after, else 0."""
    assert scores.against is not None
    window, own, base = (x[where] for x in (scores.window, scores.top1, scores.against.base_top1))
    together = window[1:] == window[:-1]
    late, early = (own[1:] == base[:-1])[together], (own[:-1] == base[1:])[together]
    for moved, same in ((-1, late), (1, early)):
        if len(same) >= MIN_TARGETS and same.mean() > max(_SAME, 2 * (own == base).mean()):
            return moved
    return 0


def _named(windows: Integers, among: int) -> str:
    """Some windows in words, and which of a batch they are where they follow each other evenly."""
    apart = np.unique(np.diff(windows))
    shown = ", ".join(map(str, windows[:4])) + (", …" if len(windows) > 4 else "")
    if len(windows) >= _FEW_WINDOWS and len(apart) == 1 and apart[0] > 1:
        return f"in one window of every {apart[0]} ({shown})"
    return f"in {len(windows)} of {among} windows ({shown})"


def _few(scores: Scores, at: Integers) -> str:
    """Targets by their rows in words; which token they are, or follow, where it is one."""
    said = f"on {len(at)} of {len(scores)} targets"
    is_second = (at > 0) & (scores.window[at - 1] == scores.window[at])
    before = scores.target[at - 1][is_second]
    for tokens, what in ((scores.target[at], "are"), (before, "follow")):
        names, counts = np.unique(tokens, return_counts=True)
        most = int(counts.argmax()) if len(counts) else 0
        if len(tokens) >= _FEW_TARGETS and counts[most] >= 0.8 * len(tokens):
            return f"{said}, of which {counts[most]} {what} token {names[most]}"
    return said


def _root(parts: Floats) -> Floats:
    return np.sqrt((parts**2).sum(0))


def _times(value: float) -> str:
    return f"{value:.3g} times"
