"""Sums over each window, estimates of the whole text from them, and the rule that ends a run early.

A window's sums are of its own scores alone, added in their order, so they are the same bits however
windows were grouped into passes. Two intervals follow from them, both by the linearized variance of a
ratio of sums (Cochran, Sampling Techniques, 1977, chapter 6) with Student's quantile:

- `of_drawn`, where windows were drawn at random: of what all windows would give. Nothing has to be
  assumed of the text, since the draw alone makes windows independent; when all are done it has no
  width. Conversations are drawn whole, and their sums are then of all their windows.
- `of_blocks`, where they are done in the order of the plan: of texts like this one, from blocks as
  long as a finished run's are. It is a quick look at what the bootstrap of the finished run will say.

A run with a rule ends by its scores alone: after each of the plan's looks the rule is held against the
interval of `of_drawn`, and the first look that it allows ends the run. Conversations are drawn whole:
looks come after as many of them as of a text's windows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.metrics import log_ratio
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, student
from scoremode.text.stopping import looks_of, stop_rule

Floats = NDArray[np.float64]

# Named in a record; another rule for looks or for intervals would have another name.
METHOD = "random windows, Student's interval, looks from 32 by 1.25"
METHOD_CONVERSATIONS = METHOD.replace("windows", "conversations")


@dataclass(frozen=True)
class Estimate:
    """A metric of the windows done: `value`, and the ends of its 95 % interval, None for too few."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class WindowSums:
    """Sums of W windows, in their order.

    - `place` int64 [W]: a window's first target in the token stream.
    - `weight` float64 [W]: of its evaluations.
    - `columns`: float64 [W] each: Σ weight · value of `nll`, against a base of `ppl_ratio` (nll less
      the base's) and `kld`.
    - `conversation` int64 [W]: the one that each window is of; None of a text.
    """

    place: NDArray[np.int64]
    weight: Floats
    columns: Mapping[str, Floats]
    conversation: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.place)

    @property
    def draws(self) -> int:
        """The number of draws: of conversations, or of windows of a text."""
        return len(self) if self.conversation is None else len(np.unique(self.conversation))

    def first(self, n: int) -> "WindowSums":
        """The sums of the first `n` windows."""
        columns = {name: column[:n] for name, column in self.columns.items()}
        conversation = None if self.conversation is None else self.conversation[:n]
        return WindowSums(self.place[:n], self.weight[:n], columns, conversation)

    def windows_of(self, draws: int) -> int | None:
        """The windows of the first so many draws, which lie in front; None where there are fewer."""
        if self.conversation is None:
            return draws if draws <= len(self) else None
        _, begin = np.unique(self.conversation, return_index=True)
        ends = np.append(np.sort(begin), len(self))
        return int(ends[draws]) if draws < len(ends) else None

    def drawn(self) -> "WindowSums":
        """The sums of each draw: of a conversation those of all its windows."""
        if self.conversation is None:
            return self
        names, begin, of = np.unique(self.conversation, return_index=True, return_inverse=True)
        columns = {name: _sums(of, column) for name, column in self.columns.items()}
        return WindowSums(self.place[begin], _sums(of, self.weight), columns, names)

    @staticmethod
    def joined(parts: "Sequence[WindowSums]") -> "WindowSums":
        """Joins the sums of several runs of windows, one behind the other."""
        names = parts[0].columns
        chats = [part.conversation for part in parts if part.conversation is not None]
        assert len(chats) in (0, len(parts))
        return WindowSums(
            np.concatenate([part.place for part in parts]),
            np.concatenate([part.weight for part in parts]),
            {name: np.concatenate([part.columns[name] for part in parts]) for name in names},
            np.concatenate(chats) if chats else None,
        )


def window_sums(
    scores: Scores,
    weights: Floats | None = None,
    conversation: NDArray[np.integer] | None = None,
) -> WindowSums:
    """The sums of whole windows' scores.

    - `weights`: float64 [N], None for one each.
    - `conversation`: int [N], the one that each target is of; None of a text.
    """
    columns = {"nll": scores.nll}
    if scores.against is not None:
        columns |= {"ppl_ratio": log_ratio(scores, scores.against), "kld": scores.against.kld}
    _, begin, window = np.unique(scores.window, return_index=True, return_inverse=True)
    weight = np.ones(len(scores)) if weights is None else weights
    return WindowSums(
        scores.index[begin].astype(np.int64),
        _sums(window, weight),
        {name: _sums(window, column * weight) for name, column in columns.items()},
        None if conversation is None else conversation[begin].astype(np.int64),
    )


def _sums(window: NDArray[np.integer], values: Floats) -> Floats:
    return np.bincount(window, weights=values).astype(np.float64, copy=False)


def estimates_of(
    sums: WindowSums, context_length: int, drawn_from: int | None = None
) -> dict[str, Estimate]:
    """Each metric of the windows done: `of_drawn` where they were drawn from so many windows, or
    conversations, else `of_blocks`."""
    if drawn_from is None:
        return of_blocks(sums, context_length)
    return of_drawn(sums, drawn_from)


def of_drawn(sums: WindowSums, drawn_from: int) -> dict[str, Estimate]:
    """Each metric of windows, or of conversations, drawn at random without replacement from so many,
    and the interval of what all of these would give.

    Sums are exact (`math.fsum`): the same on every machine.
    """
    sums = sums.drawn()
    n = len(sums)
    left = 1 - n / drawn_from
    found = {}
    for name, column in sums.columns.items():
        total = math.fsum(sums.weight)
        mean = math.fsum(column) / total
        if left == 0:
            half = 0.0
        elif n < MIN_BLOCKS:
            half = None
        else:
            squares = math.fsum((column - mean * sums.weight) ** 2)
            half = student(n - 1) * math.sqrt(left * n / (n - 1) * squares) / total
        found |= _named(name, mean, half)
    return found


def of_blocks(sums: WindowSums, context_length: int) -> dict[str, Estimate]:
    """Each metric of windows in the order of the plan, and the interval for texts like this one."""
    means = {name: column / sums.weight for name, column in sums.columns.items()}
    places = Places(sums.place, sums.conversation)
    block = places.numbered // places.chosen(means, context_length, sums.weight).tokens
    totals = np.bincount(block, weights=sums.weight)
    filled = totals > 0
    blocks = int(filled.sum())
    found = {}
    for name, column in sums.columns.items():
        mean = float(column.sum() / totals.sum())
        residual = (np.bincount(block, weights=column) - mean * totals)[filled]
        half = None
        if blocks >= MIN_BLOCKS:
            variance = blocks / (blocks - 1) * float((residual**2).sum()) / float(totals.sum()) ** 2
            half = student(blocks - 1) * math.sqrt(variance)
        found |= _named(name, mean, half)
    return found


def _named(name: str, mean: float, half: float | None) -> dict[str, Estimate]:
    """The metric that the mean of a column stands for: of `nll` the perplexity, of `ppl_ratio` the
    ratio of perplexities."""
    is_log = name != "kld"
    ends = [mean] if half is None else [mean, mean - half, mean + half]
    # A perplexity without bound is no estimate to stop by, and ends the run where it is judged.
    values = [math.exp(min(end, 700.0)) if is_log else end for end in ends]
    interval = None if half is None else (values[1], values[2])
    return {"ppl" if name == "nll" else name: Estimate(values[0], interval)}


@dataclass(frozen=True)
class Look:
    """The rule's metric after `windows` windows, its interval, and whether that `met` the rule."""

    windows: int
    value: float
    interval: tuple[float, float] | None
    met: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "value": self.value,
            "ci95": None if self.interval is None else list(self.interval),
            "met": self.met,
        }


def look_at(sums: WindowSums, drawn_from: int, rule: str) -> Look:
    """The look at the windows done, of so many windows, or conversations, in all. Raises ProtocolError
    for what is no rule."""
    wanted = stop_rule(rule)
    found = of_drawn(sums, drawn_from)[wanted.metric]
    met = found.interval is not None and wanted.allows(found.value, *found.interval)
    return Look(len(sums), found.value, found.interval, met)


def stopping_section(
    sums: WindowSums, windows: int, rule: str, seed: int, conversations: int | None = None
) -> dict[str, Any]:
    """The record's section `stopping` of a run of those windows, drawn from so many; of conversations
    drawn whole, from so many of these.

    `after` is where the rule ends a run of these scores: at the number of windows there are, or the run
    was ended by something else.
    """
    looks, drawn_from = [], windows if conversations is None else conversations
    for draws in looks_of(drawn_from):
        if (n := sums.windows_of(draws)) is None:
            break
        looks.append(look_at(sums.first(n), drawn_from, rule))
        if looks[-1].met:
            break
    return {
        "rule": rule,
        "seed": seed,
        "method": METHOD if conversations is None else METHOD_CONVERSATIONS,
        "after": looks[-1].windows if looks else 0,
        "of": windows,
        "met": bool(looks) and looks[-1].met,
        "looks": [look.to_json() for look in looks],
    }
