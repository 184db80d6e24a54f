"""Windows of many lengths grouped into micro-batches and passes, by their tokens.

A micro-batch's windows are filled up to the longest behind their ends, where no earlier position can
see: attention is causal, and a recurrence goes forward. So neighbours share one while little has to be
filled up. Where neighbours begin alike, rows of trees may hold them instead (`prefixes`). The groups
follow from the windows and the sizes alone.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scoremode.text.plan import Plan
from scoremode.text.prefixes import batches_in_rows, tokens_in_rows

__all__ = ["batches_of", "grouped", "padded", "parts_of", "passes_of", "size_of"]

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
