"""Tells how two engines' Scores of the same windows differ, and whether rounding explains it.

Two right engines differ by rounding: small errors of either sign, about as many up as down. A wrong
one (targets shifted by one, a window in another's place, a factor missing in the head) differs by
nats on many tokens, or by little but always to the same side. So a verdict looks at the spread of
the differences, at their mean, and at the worst of them, each against what the coarsest dtype that
an engine says it computes or rounds logits in can do (`LIMITS`).

**Where the limits come from.** All differences are from float32, in nats a token (2-core x86-64 with
AVX-512 BF16, torch 2.13, vLLM 0.32, 2026-11-21):

| | rms | worst | worst / typical | bias, less its interval |
|---|---|---|---|---|
| torch bfloat16, demo model and three quantized variants | 0.0086-0.0088 | 0.10 | 12 | 0 |
| torch bfloat16, a 260K-parameter trained model | 0.091 | 1.10 | 15 | 0 |
| torch bfloat16, 21 tiny random models | 0.012-0.106 | 1.92 | 23 | 1.6e-3 |
| torch / vLLM bfloat16, a random model of Qwen2-0.5B's shape | 0.20 / 0.18 | 0.79 | 4 | 0 |
| vLLM bfloat16, logits in bfloat16 / float32, demo model | 0.0110 / 0.0079 | 0.06 | 8 | 0 |
| torch float16, all of these but the last two rows | 0.0011-0.013 | 0.20 | 20 | 2e-4 |
| vLLM float16, logits in float16 / float32, demo model | 0.0014 / 0.0010 | 0.01 | 12 | 0 |
| vLLM float32, demo model | 1.1e-6 | 8e-6 | 8 | 2e-9 |
| vLLM float32, the random model of Qwen2-0.5B's shape | 2.8e-5 | 1.2e-4 | 4 | 0 |

- *Spread.* Float16 has 3 bits more than bfloat16, and its errors were 8 times smaller throughout. A
  random deep model, which nothing was trained to keep calm, magnifies rounding most: the limits of
  half precision are twice its rms. A shift by one is 1 to 4 nats, in random models too. Float32 gets
  7 times what was seen, since sums of other orders add up in deep models; arithmetic that rounds
  inputs to 11 bits (TF32) is as far off as float16. Every window has to keep within the limit by
  itself: two exchanged windows among hundreds hardly move the rms of all.
- *Bias.* Independent errors of standard deviation s on the logits raise the log of their summed
  exponentials by up to s²/2, so rounding alone has one: 2e-3 for s = 0.06. It may be that far off,
  for what the interval, which is of these windows, can't exclude. Float32 was 1.5e-8 off on the demo
  model and 1e-6 on the random one, well within its interval there.
- *Worst.* A handful of wrong tokens hides in an rms. The worst may be `_WORST` times the typical
  difference, twice what was seen, or as large as the rms limit.

**Activations.** An engine that quantizes activations computes something else than a reference that
quantizes weights only, by design. Where both quantize them, a state at the border of two codes falls
to one side in one dtype and to the other in another: a step of quantization that all later ones see,
so that no bound of rounding holds. Either way it fails only where it no longer looks like the same
model on the same tokens: the correlation of the log-probabilities below `_CORRELATION`, overall or in
a window, or an rms above `_OTHER_RMS`. Independent noise of rms r on log-probabilities that scatter by
2.5 nats leaves a correlation of 1 - r²/12.5: 0.99 at 0.35 nats, 0.92 at the 1 nat that is the limit
and that would be a broken quantization; shifted targets leave 0 to 0.2.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.record.section import Metric
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.bootstrap import perplexity

# With fewer, neither a spread nor a correlation says much.
MIN_TARGETS = 64
_WORST = 50
_CORRELATION = 0.9
_OTHER_RMS = 1.0
_TYPICAL_SHARE = 0.99


@dataclass(frozen=True)
class Limits:
    """Limits in nats: of the rms of the differences, and of their mean beyond its interval."""

    rms: float
    bias: float


# Coarsest last.
LIMITS = {
    "float32": Limits(2e-4, 2e-6),
    "float16": Limits(0.05, 5e-4),
    "bfloat16": Limits(0.4, 2e-3),
}


def logits_of(engine: Mapping[str, Any]) -> str:
    """The dtype that an engine, by its section of a record, rounds its logits to."""
    own = engine["engine"] == "vllm" and engine["head_dtype"] == "model"
    return engine["dtype"] if own else "float32"


@dataclass(frozen=True)
class WindowDifference:
    """Difference in a window: number of targets, rms and mean of differences (nats), correlation."""

    window: int
    n: int
    rms: float
    bias: float
    correlation: float | None


@dataclass(frozen=True)
class Difference:
    """Scores less others, target by target: nll − nll in nats, positive where they find it less likely.

    - `n`: targets.
    - `bias`: the mean, which is the logarithm of `ppl_ratio`; both intervals are of the blocks of text
      that both engines read, so what makes a text hard cancels.
    - `standard_error`: of `bias`, were the targets independent; no larger than the true one.
    - `rms`; `typical`: the rms of the 99 % that differ least.
    - `worst`: the one furthest from 0, at `worst_position` of `worst_window`.
    - `top1`: share of targets where both find the same id the likeliest.
    - `correlation`: of the log-probabilities; None where one side has but one value.
    - `shift`: -1 or 1 where the log-probabilities correlate with those of the target before or after
      though not with their own, else 0.
    """

    n: int
    bias: Metric
    ppl_ratio: Metric
    standard_error: float
    rms: float
    typical: float
    worst: float
    worst_window: int
    worst_position: int
    top1: float
    correlation: float | None
    shift: int
    windows: tuple[WindowDifference, ...]

    @property
    def bias_range(self) -> tuple[float, float]:
        """The bias's 95 % interval; with too few blocks for one, as for independent targets."""
        reach = 1.96 * self.standard_error
        return self.bias.ci95 or (self.bias.value - reach, self.bias.value + reach)

    @property
    def judged_windows(self) -> list[WindowDifference]:
        """The windows with enough targets to be judged by themselves."""
        return [w for w in self.windows if w.n >= MIN_TARGETS]

    def to_json(self) -> dict[str, Any]:
        metrics = {"bias": self.bias.to_json(), "ppl_ratio": self.ppl_ratio.to_json()}
        return asdict(self) | metrics | {"windows": [asdict(w) for w in self.windows]}


@dataclass(frozen=True)
class Verdict:
    """`agrees`, and why in `words`; `arithmetic` is "same" as the reference's, or "other"."""

    agrees: bool
    arithmetic: str
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def difference(
    scores: Scores,
    others: Scores,
    context_length: int,
    weights: NDArray[np.float64] | None = None,
    places: Places | None = None,
) -> Difference:
    """`scores` less `others`, which are of the same targets in the same order.

    - `context_length`: tokens of a window, of which a bootstrap block has at least as many.
    - `weights`: float64 [N], what each evaluation counts in a mean; None for one each.
    - `places`: of the evaluations, whose blocks may be conversations; None for places in a text.
    """
    for name in ("window", "position", "target"):
        assert np.array_equal(getattr(scores, name), getattr(others, name)), f"another {name}"
    d = scores.nll - others.nll
    # The log-probability of a ratio is a difference of log-probabilities: the "perplexity" of those
    # is the ratio of both, with an interval from blocks in which both engines read the same text.
    places = places or Places(scores.index)
    block = places.shortest(context_length)
    ratio = perplexity(replace(scores, logprob=-d), block, weights, places.numbered)
    share = np.full(len(d), 1 / len(d)) if weights is None else weights / weights.sum()
    worst = int(np.abs(d).argmax())
    least = np.sort(np.abs(d))[: max(1, int(_TYPICAL_SHARE * len(d)))]
    correlation = correlate(scores.logprob, others.logprob)
    return Difference(
        n=len(d),
        bias=ratio["nll"],
        ppl_ratio=ratio["ppl"],
        standard_error=float(d.std() * np.sqrt((share**2).sum())),
        rms=_rms(d),
        typical=_rms(least),
        worst=float(d[worst]),
        worst_window=int(scores.window[worst]),
        worst_position=int(scores.position[worst]),
        top1=float((scores.top1 == others.top1).mean()),
        correlation=correlation,
        shift=_shift(scores, others, correlation),
        windows=tuple(_by_window(scores, others, d)),
    )


def judge(
    found: Difference,
    *,
    compute: str,
    logits: str,
    activations: str | None = None,
    reference: str | None = None,
    named: str = "the reference",
    other: str | None = None,
) -> Verdict:
    """Judges whether an engine's difference from a float32 reference, or from another engine, is what
    rounding explains.

    - `compute`, `logits`: the dtypes it computes in and rounds logits to, or the other engine does if
      those are coarser; keys of LIMITS.
    - `activations`: what became of activations that the model declares quantized ("quantized",
      "mixed", "not quantized"), None where it declares none; `reference`: the same of the reference.
    - `named`: the other one's name. `other`: what else of the arithmetic differs by design, in words.
    """
    quantized = ("quantized", "mixed")
    if other is not None or activations in quantized or reference in quantized:
        return _judge_other(found, activations, reference, named, other)
    coarsest = max(compute, logits, key=list(LIMITS).index)
    limits = LIMITS[coarsest]
    rounding = compute if compute == logits else f"{compute} with {logits} logits"
    reasons = []
    if not found.rms <= limits.rms:
        reasons.append(f"rms {found.rms:.2g} nats, and {coarsest} explains {limits.rms:g}")
    elif far := [w for w in found.judged_windows if not w.rms <= limits.rms]:
        reasons.append(
            f"rms {far[0].rms:.2g} nats in window {far[0].window}, and {coarsest} explains "
            f"{limits.rms:g}"
        )
    worst = max(limits.rms, _WORST * found.typical)
    if not abs(found.worst) <= worst:
        reasons.append(
            f"{found.worst:+.2g} nats at position {found.worst_position} of window "
            f"{found.worst_window}, where at most {worst:.2g} fits the other targets"
        )
    low, high = found.bias_range
    if not (low <= limits.bias and high >= -limits.bias):
        reasons.append(
            f"bias {found.bias.value:+.2g} nats (95 % [{low:+.2g}, {high:+.2g}]), and {coarsest} "
            f"explains {limits.bias:g}"
        )
    if reasons:
        return Verdict(False, "same", f"disagrees: {'; '.join(reasons)}{_looks_like(found)}")
    words = (
        f"agrees: as {rounding} rounds (rms {found.rms:.2g} of at most {limits.rms:g} nats, "
        f"bias {found.bias.value:+.1g} of at most {limits.bias:g} beyond its interval)"
    )
    return Verdict(True, "same", words)


def _judge_other(
    found: Difference,
    activations: str | None,
    reference: str | None,
    named: str,
    other: str | None,
) -> Verdict:
    what = "activations quantized" + (" in some layers" if activations == "mixed" else "")
    kind, head = "other", f"other arithmetic: {what}, which {named}'s are not"
    if other is not None:
        head = f"other arithmetic: {other}"
    elif activations == reference:
        kind, head = (
            "same",
            f"{what}, as {named}'s, where a state at the border of two codes falls either way",
        )
    elif activations not in ("quantized", "mixed"):
        head = f"other arithmetic: activations not quantized, which {named}'s are"
    reasons = []
    if not found.rms <= _OTHER_RMS:
        reasons.append(f"rms {found.rms:.2g} nats, and quantization explains {_OTHER_RMS:g}")
    if found.correlation is None or not found.correlation >= _CORRELATION:
        reasons.append(_correlates(found.correlation, "the log-probabilities", named))
    else:
        known = [w for w in found.judged_windows if w.correlation is not None]
        low = min(known, key=lambda w: w.correlation or 0.0, default=None)
        if low is not None and not (low.correlation or 0.0) >= _CORRELATION:
            reasons.append(_correlates(low.correlation, f"those of window {low.window}", named))
    if reasons:
        return Verdict(False, kind, f"disagrees: {'; '.join(reasons)}{_looks_like(found)}; {head}")
    words = (
        f"{head}: PPL ×{found.ppl_ratio.value:.4g}, rms {found.rms:.2g} nats, correlation "
        f"{found.correlation:.4f}; no failure, and no proof that rounding is all"
    )
    return Verdict(True, kind, words)


def _correlates(value: float | None, what: str, named: str) -> str:
    amount = "not at all" if value is None else f"by {value:.2f}"
    return f"{what} correlate {amount} with {named}'s, and quantization leaves {_CORRELATION}"


def _looks_like(found: Difference) -> str:
    """Says what a disagreement looks like, where it looks like something."""
    if found.shift:
        return f"; it looks shifted by one target ({'late' if found.shift < 0 else 'early'})"
    squares = np.array([w.n * w.rms**2 for w in found.windows])
    much = max(0.25, 3 / len(squares)) * squares.sum()
    heavy = [str(w.window) for w, s in zip(found.windows, squares, strict=True) if s > much]
    return f"; most of it in window {' and '.join(heavy)}" if heavy else ""


def _rms(d: NDArray[np.float64]) -> float:
    return float(np.sqrt((d**2).mean()))


def correlate(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Pearson's correlation; None where one side has but one value."""
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 0 else None


def _shift(scores: Scores, others: Scores, correlation: float | None) -> int:
    if correlation is None or correlation >= _CORRELATION or len(scores) < MIN_TARGETS:
        return 0
    together = scores.window[1:] == scores.window[:-1]
    before = correlate(scores.logprob[1:][together], others.logprob[:-1][together])
    after = correlate(scores.logprob[:-1][together], others.logprob[1:][together])
    return next((s for s, value in ((-1, before), (1, after)) if (value or 0.0) >= _CORRELATION), 0)


def _by_window(scores: Scores, others: Scores, d: NDArray[np.float64]) -> list[WindowDifference]:
    names, begins = np.unique(scores.window, return_index=True)
    return [
        WindowDifference(
            int(name), len(part), _rms(part), float(part.mean()),
            correlate(own, other),
        )
        for name, part, own, other in zip(
            names, np.split(d, begins[1:]), np.split(scores.logprob, begins[1:]),
            np.split(others.logprob, begins[1:]), strict=True,
        )
    ]  # fmt: skip
