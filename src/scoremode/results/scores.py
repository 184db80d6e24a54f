"""Scores: one row per scored target, all that every metric is made of.

`check` is the gate between an engine and an average. It knows from the plan which targets must be
there and in which order, and from arithmetic what a log-probability can't be. Shifted targets,
skipped tokens and short results, which silently flatter a model, stop here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement
from scoremode.text.plan import Plan

# Column → dtype that an engine gives it, and that is written.
DTYPES: dict[str, Any] = {
    **dict.fromkeys(("window", "position", "index", "target", "top1", "base_top1"), np.int32),
    **dict.fromkeys(("logprob", "top1_logprob", "base_logprob", "base_top1_logprob"), np.float64),
    **dict.fromkeys(("kld", "kld_reverse", "tv", "tv_draft", "jsd", "kld_llama_cpp"), np.float64),
    **dict.fromkeys(("base_entropy", "model_entropy"), np.float64),
    **dict.fromkeys(("kld_least", "tv_least", "tv_most"), np.float64),
    "topk_sets": np.int16,
    "topk_order": np.int8,
}


@dataclass(frozen=True, eq=False)
class Base:
    """Columns of length N of a base's predictions of the same targets.

    - `base_logprob` float64: ln p(target), with p the base's distribution, in nats. `base_top1` int32,
      `base_top1_logprob` float64: the base's likeliest id, the smallest such id on ties, and its
      log-probability.
    """

    base_logprob: NDArray[np.float64]
    base_top1: NDArray[np.int32]
    base_top1_logprob: NDArray[np.float64]

    def columns(self) -> dict[str, NDArray]:
        """Columns that are there, by name."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: column for name, column in named.items() if column is not None}


@dataclass(frozen=True, eq=False)
class Bounds(Base):
    """Columns that bound what lies between base and model, of which some log-probabilities alone are
    known (`head.bounds`).

    - `kld_least` float64: in nats, KL(p‖q) is at least that. `tv_least`, `tv_most` float64: the total
      variation is at least, and at most, that.
    """

    kld_least: NDArray[np.float64]
    tv_least: NDArray[np.float64]
    tv_most: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Comparison(Base):
    """Columns of length N that set each prediction against the base's of the same target.

    p is the base's distribution and q the model's, over the same vocabulary; all in nats.

    - `kld` float64: KL(p‖q) = Σ p ln(p/q). `kld_reverse` float64: KL(q‖p).

    - `tv` float64: the total variation, ½ Σ |p − q|.

    Further, each None unless it was asked for:

    - `tv_draft` float64: the total variation of both at the temperature of `--draft`.
    - `jsd` float64: the Jensen-Shannon divergence, ½KL(p‖m) + ½KL(q‖m) with m = (p + q)/2.
    - `base_entropy`, `model_entropy` float64: −Σ p ln p and −Σ q ln q.
    - `topk_sets` int16: bit k-1 is set where both have the same k likeliest ids, k = 1 … 10.
    - `topk_order` int8: how many of the likeliest ids are the same in order, 0 … 10.
    - `kld_llama_cpp` float64: llama.cpp's own sum, where the reference is a file of its.
    """

    kld: NDArray[np.float64]
    kld_reverse: NDArray[np.float64]
    tv: NDArray[np.float64]
    tv_draft: NDArray[np.float64] | None = None
    jsd: NDArray[np.float64] | None = None
    base_entropy: NDArray[np.float64] | None = None
    model_entropy: NDArray[np.float64] | None = None
    topk_sets: NDArray[np.int16] | None = None
    topk_order: NDArray[np.int8] | None = None
    kld_llama_cpp: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Columns of equal length N, ordered by window, then position.

    - `window` int32: index in the plan.
    - `position` int32: the target's position in its window, at least 1.
    - `index` int32: the target's place in the plan's token stream.
    - `target` int32: its token id.
    - `logprob` float64: its natural-log probability given the inputs before it.
    - `top1` int32: the id of the largest logit, the smallest such id on ties.
    - `top1_logprob` float64: that id's log-probability.
    - `against`: the same targets by a base model, None where there was none; `bounds`: in its place
      where the model's distributions are not known whole.
    """

    window: NDArray[np.int32]
    position: NDArray[np.int32]
    index: NDArray[np.int32]
    target: NDArray[np.int32]
    logprob: NDArray[np.float64]
    top1: NDArray[np.int32]
    top1_logprob: NDArray[np.float64]
    against: Comparison | None = None
    bounds: Bounds | None = None

    def __len__(self) -> int:
        return len(self.window)

    @property
    def nll(self) -> NDArray[np.float64]:
        """float64 [N]: negative log-likelihood in nats."""
        return -self.logprob

    @property
    def base(self) -> Base | None:
        """The base's own columns, where there is one."""
        return self.bounds if self.against is None else self.against

    def columns(self) -> dict[str, NDArray]:
        """All columns by name, those of the comparison, or its bounds, behind the others."""
        own = {name: getattr(self, name) for name in _OWN}
        return own if self.base is None else own | self.base.columns()

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> "Scores":
        """The inverse of `columns`. Names that no column has are left out."""
        own = {name: columns[name] for name in _OWN}
        if _is_bounded(columns):
            return cls(**own, bounds=Bounds(**{name: columns[name] for name in _BOUNDED}))
        against = {name: columns[name] for name in _COMPARED if name in columns}
        return cls(**own, against=Comparison(**against) if against else None)

    @staticmethod
    def missing(names: Collection[str]) -> list[str]:
        """Columns that `names` lack to be those of Scores, with a comparison where they have one."""
        compared = _REQUIRED if any(name in names for name in _COMPARED) else ()
        needed = [*_OWN, *(_BOUNDED if _is_bounded(names) else compared)]
        return [name for name in needed if name not in names]


_OWN = tuple(f.name for f in fields(Scores) if f.name not in ("against", "bounds"))
_BOUNDED = tuple(f.name for f in fields(Bounds))
_COMPARED = tuple(f.name for f in fields(Comparison))
_REQUIRED = tuple(f.name for f in fields(Comparison) if f.default is MISSING)


def _is_bounded(names: Collection[str]) -> bool:
    return "kld_least" in names


def concatenate(parts: Sequence[Scores]) -> Scores:
    """Joins several Scores with the same columns into one, in order."""
    columns = [part.columns() for part in parts]
    return Scores.from_columns(
        {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}
    )


def expected(plan: Plan, windows: range) -> dict[str, NDArray[np.int32]]:
    """The columns `window`, `position`, `index`, `target` that a plan demands, int32 [N] each.

    A window's BOS is written over its first token only, which is never a target: the targets are
    the stream's own tokens.
    """
    window = np.repeat(
        np.arange(windows.start, windows.stop), plan.counts[windows.start : windows.stop]
    )
    positions = [plan.positions(w) for w in windows]
    position = np.concatenate(positions) if positions else np.empty(0, np.int64)
    index = plan.start[window] + position
    columns = {"window": window, "position": position, "index": index}
    return {k: v.astype(np.int32) for k, v in columns.items()} | {"target": plan.tokens[index]}


def check(scores: Scores, plan: Plan, windows: range) -> None:
    """Raises InvalidMeasurement unless `scores` are those of `windows` of `plan`.

    Beyond names and counts, two facts hold for any distribution and fail when values slide against
    their labels: the likeliest id's log-probability belongs to the target exactly when the target
    is that id, and no other id has more than half of the probability. The torch engine's labels are
    the plan's own, so there only these two can tell; vLLM's come back from its workers.
    """
    wanted = expected(plan, windows)
    if len(scores) != len(wanted["window"]):
        raise InvalidMeasurement(
            f"the engine returned {len(scores)} scores for {len(wanted['window'])} targets "
            f"(windows {windows.start} to {windows.stop - 1})"
        )
    for name, column in scores.columns().items():
        if len(column) != len(scores):
            raise InvalidMeasurement(
                f"the engine returned {len(column)} values of {name} for {len(scores)} targets"
            )
        if column.dtype != DTYPES[name]:
            # Coarser ones would be averaged like any other.
            raise InvalidMeasurement(
                f"the engine returned {name} as {column.dtype}, not {np.dtype(DTYPES[name])}"
            )
    for name, values in wanted.items():
        got = getattr(scores, name)
        if not np.array_equal(got, values):
            i = int(np.flatnonzero(got != values)[0])
            raise InvalidMeasurement(
                f"the engine scored {name} {got[i]} where the plan has {name} {values[i]} "
                f"(window {wanted['window'][i]}, position {wanted['position'][i]})"
            )
    check_values(scores)


def check_values(scores: Scores) -> None:
    """The part of `check` that holds for any Scores, whatever the plan. Raises InvalidMeasurement."""
    _refuse(~np.isfinite(scores.logprob), scores, "is not finite")
    _refuse(~np.isfinite(scores.top1_logprob), scores, "has a likeliest id that is not finite")
    # One float32 rounding of a log-probability near 0 is all that may stand above it.
    _refuse(scores.top1_logprob > 1e-6, scores, "belongs to a probability above 1")
    hit = scores.top1 == scores.target
    _refuse(hit & (scores.logprob != scores.top1_logprob), scores, "differs from its own top-1's")
    both = np.exp(scores.logprob) + np.exp(scores.top1_logprob)
    above = (scores.logprob > scores.top1_logprob) | (both > 1 + 1e-5)
    _refuse(~hit & above, scores, "exceeds what its top-1 leaves")
    if scores.bounds is not None:
        _check_bounds(scores, scores.bounds)
    if scores.against is not None:
        _check_comparison(scores, scores.against)
    if scores.base is not None:
        _check_base(scores, scores.base)


def _check_comparison(scores: Scores, against: Comparison) -> None:
    """A divergence is finite and not below 0, and the base's columns are a distribution's."""
    for name, column in against.columns().items():
        if np.issubdtype(column.dtype, np.floating):
            _refuse(~np.isfinite(column), scores, "is not finite", name, column)
    for name in ("kld", "kld_reverse", "tv", "tv_draft", "jsd"):
        column = getattr(against, name)
        if column is not None:
            # An exact 0 is left by as much as float32 rounds a difference of logits: 6e-5 where two
            # models, sure of the same token, are 1000 apart in its logit. A wrong one is off by nats.
            _refuse(column < -1e-3, scores, "is below 0", name, column)
    for name in ("tv", "tv_draft"):
        column = getattr(against, name)
        if column is not None:
            _refuse(column > 1 + 1e-5, scores, "is above 1", name, column)
    if against.kld_llama_cpp is None:
        # Distributions differ by at least as much as in the probability of one entry, the target. A
        # llama.cpp file's add up to as much as 1 + V·e⁻¹⁶, and divergences are of them renormalized.
        apart = np.abs(np.exp(scores.logprob) - np.exp(against.base_logprob))
        _refuse(against.tv < apart - 1e-3, scores, "is less than its target's", "tv", against.tv)
    for name, top1 in (
        ("base_entropy", against.base_top1_logprob),
        ("model_entropy", scores.top1_logprob),
    ):
        column = getattr(against, name)
        if column is not None:
            # No distribution has less than that of its likeliest id alone (its min-entropy).
            _refuse(column < -top1 - 1e-3, scores, "is less than its top-1 leaves", name, column)


def _check_bounds(scores: Scores, bounds: Bounds) -> None:
    """Bounds are finite, a total variation's in order and around its target's part."""
    for name, column in bounds.columns().items():
        if np.issubdtype(column.dtype, np.floating):
            _refuse(~np.isfinite(column), scores, "is not finite", name, column)
    for name in ("kld_least", "tv_least"):
        column = getattr(bounds, name)
        _refuse(column < 0, scores, "is below 0", name, column)
    most, least = bounds.tv_most, bounds.tv_least
    _refuse(most > 1 + 1e-5, scores, "is above 1", "tv_most", most)
    _refuse(least > most, scores, "is above what it is at most", "tv_least", least)
    # The target is in every set that a total variation is bounded by.
    apart = np.abs(np.exp(scores.logprob) - np.exp(bounds.base_logprob))
    _refuse(most < apart - 1e-3, scores, "is less than its target's", "tv_most", most)


def _check_base(scores: Scores, against: Base) -> None:
    """A base's log-probability of a target is its likeliest id's exactly where that is the target."""
    base = against.base_logprob
    hit = against.base_top1 == scores.target
    wrong = (hit & (base != against.base_top1_logprob)) | (base > against.base_top1_logprob)
    _refuse(wrong, scores, "contradicts the base's own top-1", "base_logprob", base)


def _refuse(
    wrong: NDArray[np.bool_],
    scores: Scores,
    what: str,
    name: str = "log-probability",
    values: NDArray | None = None,
) -> None:
    if not wrong.any():
        return
    i = int(np.flatnonzero(wrong)[0])
    value = (scores.logprob if values is None else values)[i]
    raise InvalidMeasurement(
        f"the {name} {value} of target {scores.target[i]} {what} "
        f"(window {scores.window[i]}, position {scores.position[i]}; "
        f"{int(wrong.sum())} of {len(scores)} such)"
    )
