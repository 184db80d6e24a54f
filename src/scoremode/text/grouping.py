"""Windows of many lengths grouped into micro-batches and passes, by their tokens.

A micro-batch's windows are filled up to the longest behind their ends, where no earlier position can
see: attention is causal, and a recurrence goes forward. So neighbours share one while little has to be
filled up. The groups follow from the lengths and the sizes alone.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["batches_of", "padded", "parts_of", "passes_of"]

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


def passes_of(
    lengths: IntArray, batches: Sequence[range], *, tokens: int, most: int
) -> list[range]:
    """Runs of whole micro-batches of at most `most` windows and so many `tokens`, or of one that has
    more. Where a pass ends decides no micro-batch: it may be longer for more devices."""
    passes: list[range] = []
    held = 0
    for batch in batches:
        own = padded(lengths, batch)
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
