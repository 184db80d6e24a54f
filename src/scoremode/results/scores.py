"""Scores: one row per scored target, all that every metric is made of.

`check` is the gate between an engine and an average. It knows from the plan which targets must be
there and in which order, and from arithmetic what a log-probability can't be. Shifted targets,
skipped tokens and short results, which silently flatter a model, stop here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement
from scoremode.text.plan import Plan

__all__ = ["Scores", "check", "concatenate", "expected"]


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
    """

    window: NDArray[np.int32]
    position: NDArray[np.int32]
    index: NDArray[np.int32]
    target: NDArray[np.int32]
    logprob: NDArray[np.float64]
    top1: NDArray[np.int32]
    top1_logprob: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.window)

    @property
    def nll(self) -> NDArray[np.float64]:
        """float64 [N]: negative log-likelihood in nats."""
        return -self.logprob

    def columns(self) -> dict[str, NDArray]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def concatenate(parts: Sequence[Scores]) -> Scores:
    """One Scores of several, in order."""
    return Scores(
        **{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Scores)}
    )


def expected(plan: Plan, windows: range) -> dict[str, NDArray[np.int32]]:
    """The columns `window`, `position`, `index`, `target` that a plan demands, int32 [N] each.

    A window's BOS is written over its first token only, which is never a target: the targets are
    the stream's own tokens.
    """
    counts = plan.counts[windows.start : windows.stop]
    window = np.repeat(np.arange(windows.start, windows.stop), counts)
    ends = counts.cumsum()
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    position = plan.first[window] + within
    index = plan.start[window] + position
    columns = {"window": window, "position": position, "index": index}
    return {k: v.astype(np.int32) for k, v in columns.items()} | {"target": plan.tokens[index]}


def check(scores: Scores, plan: Plan, windows: range) -> None:
    """Raises InvalidMeasurement unless `scores` are those of `windows` of `plan`.

    Beyond names and counts, two facts hold for any distribution and fail when values slide against
    their labels: the likeliest id's log-probability belongs to the target exactly when the target
    is that id, and no other id has more than half of the probability.
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
    for name, values in wanted.items():
        got = getattr(scores, name)
        if not np.array_equal(got, values):
            i = int(np.flatnonzero(got != values)[0])
            raise InvalidMeasurement(
                f"the engine scored {name} {got[i]} where the plan has {name} {values[i]} "
                f"(window {wanted['window'][i]}, position {wanted['position'][i]})"
            )
    _refuse(~np.isfinite(scores.logprob), scores, "is not finite")
    _refuse(~np.isfinite(scores.top1_logprob), scores, "has a likeliest id that is not finite")
    # One float32 rounding of a log-probability near 0 is all that may stand above it.
    _refuse(scores.top1_logprob > 1e-6, scores, "belongs to a probability above 1")
    hit = scores.top1 == scores.target
    _refuse(hit & (scores.logprob != scores.top1_logprob), scores, "differs from its own top-1's")
    both = np.exp(scores.logprob) + np.exp(scores.top1_logprob)
    above = (scores.logprob > scores.top1_logprob) | (both > 1 + 1e-5)
    _refuse(~hit & above, scores, "exceeds what its top-1 leaves")


def _refuse(wrong: NDArray[np.bool_], scores: Scores, what: str) -> None:
    if not wrong.any():
        return
    i = int(np.flatnonzero(wrong)[0])
    raise InvalidMeasurement(
        f"the log-probability {scores.logprob[i]} of target {scores.target[i]} {what} "
        f"(window {scores.window[i]}, position {scores.position[i]}; "
        f"{int(wrong.sum())} of {len(scores)} such)"
    )
