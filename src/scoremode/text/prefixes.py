"""Windows that begin alike, laid out so that what they share is computed once.

A causal model's state at a token follows from that token and those before it, so windows with the same
first inputs have the same states there. Each window goes on from the one before it where the two part:
together they are trees, whose nodes are different beginnings of inputs. Of windows in lexicographic
order no node is there twice; in any other order some are, and each state is right all the same.

Trees lie depth first, side by side in rows. Then the tokens that follow a node, on any of its branches,
are those right behind it, up to an `end`: a token sees the node at `j` from a place `i` in the same row
where j <= i < end[j].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Forest", "batches_in_rows", "lay", "rows_of", "shared_inputs", "tokens_in_rows"]

IntArray = NDArray[np.int64]


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


def shared_inputs(windows: Sequence[NDArray[np.int32]]) -> IntArray:
    """int64 [W]: how many first inputs each window, of ids [n], has in common with the one before."""
    shared = np.zeros(len(windows), np.int64)
    for w in range(1, len(windows)):
        one, other = windows[w - 1], windows[w]
        n = min(len(one), len(other))
        differs = one[:n] != other[:n]
        shared[w] = differs.argmax() if differs.any() else n
    return shared


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
