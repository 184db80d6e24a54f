"""Micro-batches and passes of windows, by their tokens: padded, or laid out as prefix trees.

A micro-batch's windows are padded to the longest behind their ends, where no earlier position can see:
attention is causal, and a recurrence goes forward. So neighbors share one while little padding is
needed. The groups follow from the windows and the sizes alone.

Windows that begin alike can be laid out so that what they share is computed once. A causal model's
state at a token follows from that token and those before it, so windows with the same first inputs have
the same states there. Each window continues the one before it from the place where the two part:
together they are trees, whose nodes are different beginnings of inputs. In lexicographic order no node
occurs twice; in any other order some do, and each state is still right. Trees lie depth first, side by
side in rows (`Forest`). Then the tokens that follow a node, on any of its branches, are those right
behind it, up to an `end`: a token sees the node at `j` from a place `i` in the same row where
j <= i < end[j].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scoremode.text.plan import Plan, shared_inputs

__all__ = [
    "Forest",
    "batches_in_rows",
    "batches_of",
    "grouped",
    "lay",
    "padded",
    "parts_of",
    "passes_of",
    "rows_of",
    "size_of",
    "tokens_in_rows",
]


# Of a micro-batch's tokens so small a share, or so many, may be filled up: beyond that another
# micro-batch costs less.
SHARE = 8
FEW = 256

IntArray = NDArray[np.int64]


def batches_of(
    lengths: IntArray, windows: range, *, tokens: int, most: int, pads: bool
) -> list[range]:
    """Neighbours among `windows` that are at most `most`, of at most so many `tokens` when filled up,
    or single ones; of one length alone where it does not pad.

    `lengths`: int64 [W], tokens of all windows.
    """
    batches: list[range] = []
    begin, real, longest = windows.start, 0, 0
    for w in windows:
        length = int(lengths[w])
        with_it, together = real + length, max(longest, length)
        whole = (w - begin + 1) * together
        allowed = max(with_it // SHARE, FEW) if pads else 0
        if begin < w < begin + most and whole <= tokens and whole - with_it <= allowed:
            batches[-1] = range(begin, w + 1)
            real, longest = with_it, together
        else:
            batches.append(range(w, w + 1))
            begin, real, longest = w, length, length
    return batches


def grouped(
    plan: Plan, windows: range, *, tokens: int, most: int, pads: bool, row: int | None = None
) -> list[range]:
    """Micro-batches of a plan's `windows`: of at most `most`, and so many `tokens` with what fills them
    up; in rows of so many tokens with what they have in common once, where a `row` is given."""
    if row is None:
        return batches_of(plan.lengths, windows, tokens=tokens, most=most, pads=pads)
    inputs, targets = plan.lengths - 1, plan.counts
    return batches_in_rows(inputs, plan.shared, targets, windows, row=row, tokens=tokens, most=most)


def size_of(plan: Plan, batch: range, row: int | None = None) -> int:
    """Tokens of a micro-batch with what fills it up; of one in rows, its targets where they are more:
    each has a state, and many may have the same one."""
    if row is None:
        return padded(plan.lengths, batch)
    targets = int(plan.counts[batch.start : batch.stop].sum())
    return max(targets, tokens_in_rows(plan.lengths - 1, plan.shared, batch, row))


def passes_of(
    batches: Sequence[range], sizes: Sequence[int], *, tokens: int, most: int
) -> list[range]:
    """Runs of whole micro-batches, of so many tokens each, that have at most `most` windows and so many
    `tokens`, or of one that has more. Where a pass ends decides no micro-batch: it may be longer for
    more devices."""
    passes: list[range] = []
    held = 0
    for batch, own in zip(batches, sizes, strict=True):
        if passes and held + own <= tokens and batch.stop - passes[-1].start <= most:
            passes[-1] = range(passes[-1].start, batch.stop)
            held += own
        else:
            passes.append(batch)
            held = own
    return passes


def padded(lengths: IntArray, batch: range) -> int:
    """Tokens of a micro-batch whose windows are all as long as the longest."""
    return len(batch) * int(lengths[batch.start : batch.stop].max())


def parts_of(batch: range, many: int) -> list[range]:
    """A micro-batch in so many parts, or in single windows where it has fewer."""
    n = min(many, len(batch))
    cuts = [batch.start + i * len(batch) // n for i in range(n + 1)]
    return [range(a, b) for a, b in pairwise(cuts)]


@dataclass(frozen=True, eq=False)
class Forest:
    """Windows laid out in B rows of T places.

    - `ids` int32 [B, T]: inputs; what fills a row up is its last input again.
    - `depth` int64 [B, T]: how many inputs of its window stand before each, 0 of what fills up.
    - `end` int64 [B, T]: the place in its row behind all that follow on it; nothing follows on what
      fills up.
    - `row`, `last` int64 [W]: the row of each window and the place there of its last input.
    """

    ids: NDArray[np.int32]
    depth: IntArray
    end: IntArray
    row: IntArray
    last: IntArray

    def places(self, window: int) -> IntArray:
        """int64 [n]: the places of a window's n inputs in its row, in order."""
        last = self.last[window]
        return np.flatnonzero(self.end[self.row[window], : last + 1] > last)


def rows_of(inputs: IntArray, shared: IntArray, windows: range, row: int) -> list[range]:
    """The windows of each row of at most `row` tokens, or of one window that has more: as many
    neighbours as it has places for, the first with all of its inputs.

    - `inputs`, `shared` int64 [W]: inputs of each window, and those that it shares with the one before.
    """
    rows: list[range] = []
    held = 0
    for w in windows:
        new = int(inputs[w] - shared[w])
        if rows and held + new <= max(row, held):
            rows[-1] = range(rows[-1].start, w + 1)
            held += new
        else:
            rows.append(range(w, w + 1))
            held = int(inputs[w])
    return rows


def tokens_in_rows(inputs: IntArray, shared: IntArray, windows: range, row: int) -> int:
    """Tokens of `windows` in rows that are all as long as the longest."""
    rows = rows_of(inputs, shared, windows, row)
    return len(rows) * max(_distinct(inputs, shared, each) for each in rows)


def batches_in_rows(
    inputs: IntArray,
    shared: IntArray,
    targets: IntArray,
    windows: range,
    *,
    row: int,
    tokens: int,
    most: int,
) -> list[range]:
    """Micro-batches of neighbours among `windows`: of at most `most`, with at most so many `tokens` in
    rows and so many targets; or single ones.

    - `targets` int64 [W]: scored targets of each window.
    """
    batches: list[range] = []
    begin, scored, rows, held, longest = windows.start, 0, 0, 0, 0
    for w in windows:
        new, whole = int(inputs[w] - shared[w]), int(inputs[w])
        after, own = (rows, held + new) if held + new <= max(row, held) else (rows + 1, whole)
        scored += int(targets[w])
        together = after * max(longest, own)
        if begin < w < begin + most and together <= tokens and scored <= tokens:
            batches[-1] = range(begin, w + 1)
            rows, held, longest = after, own, max(longest, own)
        else:
            batches.append(range(w, w + 1))
            begin, scored, rows, held, longest = w, int(targets[w]), 1, whole, whole
    return batches


def lay(windows: Sequence[NDArray[np.int32]], row: int) -> Forest:
    """Lays out windows of ids [n] in rows of at most `row` tokens, or of one window that has more."""
    inputs, shared = np.array(list(map(len, windows)), np.int64), shared_inputs(windows)
    rows = rows_of(inputs, shared, range(len(windows)), row)
    width = max(_distinct(inputs, shared, each) for each in rows)
    ids = np.zeros((len(rows), width), np.int32)
    depth = np.zeros((len(rows), width), np.int64)
    end = np.tile(np.arange(1, width + 1), (len(rows), 1))
    of, last = np.zeros(len(windows), np.int64), np.zeros(len(windows), np.int64)
    for r, each in enumerate(rows):
        # Places of the latest window's inputs, and how many are taken.
        path, taken = np.zeros(0, np.int64), 0
        for w in each:
            common = 0 if w == each.start else int(shared[w])
            end[r, path[common:]] = taken
            new = np.arange(taken, taken + int(inputs[w]) - common)
            ids[r, new], depth[r, new] = windows[w][common:], np.arange(common, inputs[w])
            path, taken = np.concatenate([path[:common], new]), taken + len(new)
            of[w], last[w] = r, path[-1]
        end[r, path] = taken
        ids[r, taken:] = ids[r, taken - 1]
    return Forest(ids, depth, end, of, last)


def _distinct(inputs: IntArray, shared: IntArray, row: range) -> int:
    """Tokens of a row's windows without those that they share with the one before."""
    return int(inputs[row.start : row.stop].sum() - shared[row.start + 1 : row.stop].sum())
