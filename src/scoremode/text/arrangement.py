"""The order in which conversations are scored: alike lengths together, and mixed.

Windows that share a micro-batch are padded to the longest, so neighbours should be about as long.
But in the order of their lengths the first half of a run would be short conversations alone, and its
running estimate one of these. So windows are sorted, cut into groups that fill a micro-batch, and the
groups shuffled: by the lengths alone, so that every machine has the same order.
"""

import numpy as np
from numpy.typing import NDArray

from scoremode.text.stopping import drawn_order, looks_of

__all__ = ["arrangement", "drawn_arrangement"]

# Tokens of a group, padded: the largest micro-batch of a GPU, and several of a CPU.
GROUP_TOKENS = 16_384

IntArray = NDArray[np.int64]


def arrangement(lengths: IntArray) -> IntArray:
    """int64 [W]: windows of so many tokens (int64 [W]), in the order in which they are scored."""
    order = np.argsort(lengths, kind="stable")
    groups, begin = [], 0
    for i, length in enumerate(lengths[order].tolist()):
        if i > begin and (i - begin + 1) * length > GROUP_TOKENS:
            groups.append(order[begin:i])
            begin = i
    groups.append(order[begin:])
    return np.concatenate([groups[g] for g in drawn_order(len(groups), 0)])


def drawn_arrangement(
    conversation: NDArray[np.integer], lengths: IntArray, start: IntArray, seed: int
) -> IntArray:
    """int64 [W]: windows of conversations, which `seed` draws whole, in the order in which they are
    scored.

    Between two looks of a rule to stop by, conversations come by the length of their longest window.

    `conversation`: int [W], the one that each window is of. `lengths`, `start`: int64 [W].
    """
    names, of = np.unique(conversation, return_inverse=True)
    longest = np.zeros(len(names), np.int64)
    np.maximum.at(longest, of, lengths)
    drawn = np.array(drawn_order(len(names), seed), np.int64)
    place = np.empty(len(names), np.int64)
    begin = 0
    for look in looks_of(len(names)):
        some = drawn[begin:look]
        place[some[np.argsort(longest[some], kind="stable")]] = np.arange(begin, look)
        begin = look
    return np.lexsort((start, lengths, place[of]))
