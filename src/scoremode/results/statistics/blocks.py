"""The blocks of a bootstrap: stretches of a text, or whole conversations, and how long they are.

Tokens of a conversation depend on each other, and nothing crosses
from one to the next: each is a block, however long it is. In a text, whose tokens depend on those
before them without an end, the scores themselves say how long blocks must be.

A block must be long beside the reach of the dependence, or the interval is too narrow: tokens are
hard or easy together over sentences, sections and whole documents, which no window's length knows.
The length is Politis and White's ("Automatic block-length selection for the dependent bootstrap",
Econometric Reviews 23, 2004; corrected by Patton, Politis and White, ibid. 28, 2009) with the constant
of the blocks drawn here, which don't overlap: where a moving-block bootstrap's variance has 4/3 g², it
has 2 g² (Lahiri, "Theoretical comparisons of block bootstrap methods", Annals of Statistics 27, 1999).

That length makes the variance's mean square error least, at the price of a variance too small: three
times the length costs a wider Student's factor and little else. What that covers:
`benchmarks/coverage.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Scores
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, covered, too_few
from scoremode.results.statistics.means import Blocks
from scoremode.text.plan import Plan

Floats = NDArray[np.float64]

SHORTEST = 1024
# Of the text: its dependence is measured between so many stretches at most, and a block is no longer
# than the last, whatever was measured.
_CELLS = 512
_LARGEST_SHARE = 8
_TIMES = 3
# The column that says of which conversation a target is.
CONVERSATION = "conversation"


@dataclass(frozen=True)
class BlockLength:
    """`tokens` of a block, and why so many.

    - `rule`: what decided: `window` (a block holds whole windows), `shortest`, `autocorrelation`, or
      `eighth` where the autocorrelation asks for more than an eighth of the text; `conversation` where
      each is a block, counted as 1 (`places`).
    - `measured`: the length that each column asks for, in tokens; None where it tells none, being
      constant or of too few stretches.
    """

    tokens: int
    rule: str
    measured: dict[str, float | None]

    def to_json(self, blocks: int) -> dict[str, Any]:
        """The record's `intervals`, of so many blocks."""
        found: dict[str, Any] = {"blocks": blocks, "block_length": self.tokens, "rule": self.rule}
        if self.rule == "conversation":
            covers = covered(blocks)
            return found if covers is None else found | {"covers": covers}
        return found | {"shortest": SHORTEST, "autocorrelation": self.measured}


def block_length(
    index: NDArray[np.integer],
    columns: Mapping[str, Floats],
    context_length: int,
    weights: Floats | None = None,
) -> BlockLength:
    """The length for means of all `columns`: the largest that one of them asks for.

    - `index`: int [N], places in the token stream. `columns`: float64 [N] each.
    - `weights`: float64 [N], what each evaluation counts; None for one each.

    A multiple of `context_length`, so that all blocks begin alike in their windows.
    """
    places = int(index.max()) + 1
    # Whole windows: within one, tokens are easier the more precede them, which is no dependence.
    cell = context_length * math.ceil(places / (_CELLS * context_length))
    cells = index.astype(np.int64) // cell
    weight = np.ones(len(index)) if weights is None else weights
    totals = np.bincount(cells, weights=weight)
    filled = totals > 0
    measured: dict[str, float | None] = {}
    for name, column in columns.items():
        sums = np.bincount(cells, weights=column * weight)
        mean = sums.sum() / totals.sum()
        asked = politis_white((sums - mean * totals)[filled])
        measured[name] = None if asked is None else float(_TIMES * asked * cell)
    shortest = _windows(SHORTEST, context_length)
    found = max((x for x in measured.values() if x is not None), default=0.0)
    most = int(filled.sum()) * cell // _LARGEST_SHARE // context_length * context_length
    if found <= shortest or most <= shortest:
        return BlockLength(
            shortest, "window" if context_length > SHORTEST else "shortest", measured
        )
    wanted = _windows(found, context_length)
    if wanted > most:
        return BlockLength(most, "eighth", measured)
    return BlockLength(wanted, "autocorrelation", measured)


def politis_white(series: Floats) -> float | None:
    """The block length of `series` (float64 [n]) with least mean square error of its mean's variance.

    None for a constant series, and for one too short to tell (below 16). A correlation
    counts as none where it and the next few are within the bounds that Politis and White give.
    """
    n = len(series)
    centred = series - series.mean()
    if n < 16 or not (centred**2).sum() > 1e-24 * max((series**2).sum(), 1e-300):
        return None
    transform = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(np.abs(transform) ** 2)[:n] / n
    lags = max(5, math.ceil(math.sqrt(math.log10(n))))
    largest = min(math.ceil(math.sqrt(n)) + lags, n - lags - 1)
    bound = 2 * math.sqrt(math.log10(n) / n)
    within = np.abs(covariance[1 : largest + lags + 1] / covariance[0]) < bound
    runs = np.convolve(within, np.ones(lags), "valid") == lags
    if runs.any():
        last = int(runs.argmax())
    else:
        beyond = np.flatnonzero(~within)
        last = int(beyond[-1]) + 1 if len(beyond) else 1
    width = min(2 * max(last, 1), largest)
    k = np.arange(1, width + 1)
    tapered = np.minimum(1, 2 * (1 - k / width)) * covariance[1 : width + 1]
    slope, spectrum = 2 * float((k * tapered).sum()), covariance[0] + 2 * float(tapered.sum())
    if spectrum <= 0:  # an estimate without meaning: the dependence reaches too far to see its end
        return float(n)
    return (abs(slope) / spectrum) ** (2 / 3) * n ** (1 / 3)


def planned_blocks(plan: Plan) -> dict[str, Any]:
    """What a plan tells of the intervals of its scores, before there is one.

    `blocks`: how many there are at most, of `block_length` (1: whole conversations or pages); `note`:
    that they are too few for any interval, and what gives more; None where they are enough, and of
    requests, each task of which has its own.
    """
    if plan.conversation is not None:
        length, blocks = CONVERSATIONS.tokens, plan.draws
    else:
        assert plan.protocol.context_length is not None
        length = _windows(SHORTEST, plan.protocol.context_length)
        # No window is longer than a block: it lies in one, or in two neighbors.
        ends = np.concatenate([plan.start + plan.first, plan.stop - 1])
        blocks = len(np.unique(ends // length))
    note = None
    if blocks < MIN_BLOCKS and plan.protocol.text != "requests":
        note = (
            f"these windows give no interval and no test ({too_few(blocks, length)}); "
            f"{_more(plan, length)} would"
        )
    return {"blocks": blocks, "block_length": length, "note": note}


def _more(plan: Plan, length: int) -> str:
    """What gives a plan enough blocks of that length."""
    protocol, tokens = plan.protocol, len(plan.tokens)
    if plan.conversation is not None:
        return f"more {protocol.text}"
    context, stride = protocol.context_length, protocol.stride
    assert context is not None and stride is not None
    scored = MIN_BLOCKS * length
    needed = scored + (protocol.tail == "drop-exact")
    if protocol.max_windows is not None and tokens >= needed:
        return f"--limit {1 + math.ceil((scored - context) / stride)}"
    # Of a window that is longer than the shortest block, a block is as long.
    shorter = 1 << int(math.log2(max(tokens // MIN_BLOCKS, 1)))
    also = f", or -c {shorter}," if SHORTEST <= shorter < context else ""
    return f"a text of {needed:,} tokens (this one has {tokens:,}){also}"


def _windows(tokens: float, context_length: int) -> int:
    """`tokens` or the next larger number that is whole windows."""
    return context_length * math.ceil(tokens / context_length)


CONVERSATIONS = BlockLength(1, CONVERSATION, {})


@dataclass(frozen=True, eq=False)
class Places:
    """Places of evaluations, or of sums of them that lie together.

    - `index`: int [N], in the token stream.
    - `conversation`: int [N], the one that each is of; None of a text.
    """

    index: NDArray[np.integer]
    conversation: NDArray[np.integer] | None = None

    @classmethod
    def of(cls, scores: Scores, extras: Mapping[str, Any]) -> "Places":
        """The places of Scores with the columns beside them, as `read_columns` gives both."""
        return cls(scores.index, extras.get(CONVERSATION))

    @property
    def numbered(self) -> NDArray[np.integer]:
        """int [N]: what blocks are runs of: places in the stream, or conversations."""
        return self.index if self.conversation is None else self.conversation

    def chosen(
        self,
        columns: Mapping[str, Floats],
        context_length: int,
        weights: Floats | None = None,
    ) -> BlockLength:
        """The length of blocks for means of all `columns`, float64 [N] each, of evaluations that count
        as `weights`, float64 [N]."""
        if self.conversation is not None:
            return CONVERSATIONS
        return block_length(self.index, columns, context_length, weights)

    def shortest(self, context_length: int) -> int:
        """The length of blocks that no score decides: a window, or a conversation."""
        return context_length if self.conversation is None else CONVERSATIONS.tokens

    def blocks(self, length: int, weights: Floats | None = None) -> Blocks:
        """Blocks of that length, as `chosen` or `shortest` gives it."""
        return Blocks(self.numbered, length, weights)
